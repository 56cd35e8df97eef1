"""The parts by themselves: payloads, places of nodes, fetching."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st
from tests.deploy import stock
from tests.deploy.double import Double

from offbeat.compression import CODECS, Compression, TopK
from offbeat.flower import coded_reply, wire
from offbeat.flower import puller as pulling
from offbeat.flower.nodes import Nodes
from offbeat.messages import Job, Update
from offbeat.payload import WireError, decode_update, encode_update, pack, sealed, unpack
from offbeat.server.validation import UpdateValidator
from offbeat.vectors import Layout

LAYOUT = Layout(("w", "b"), (torch.Size((30, 10)), torch.Size((10,))))


def job(x: torch.Tensor, **more: object) -> Job:
    return Job(id=7, client=2, version=3, x=x, steps=5, seed=2**63 + 11, rate=0.5, **more)  # type: ignore[arg-type]


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=40), max_size=4), st.integers(0, 2**70))
def test_a_payload_comes_back(parts: dict[str, bytes], number: int) -> None:
    head, found = unpack(pack({"job": number}, parts))
    assert head == {"job": number}
    assert found == parts


@given(st.binary(max_size=60))
def test_what_is_no_payload_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        unpack(body)


@pytest.mark.parametrize("name", CODECS)
def test_what_the_server_reads_is_what_the_code_carries(name: str) -> None:
    codec, rng = CODECS[name](), torch.Generator().manual_seed(0)
    x, delta = (torch.randn(LAYOUT.dim, generator=rng) for _ in range(2))
    asked = job(x)
    update = Update(job=7, client=2, version=3, delta=delta, steps=5, examples=40, wire_bytes=0, extra={"c": x})
    payload = encode_update(update, codec, LAYOUT, asked)
    found = decode_update(payload, codec, LAYOUT, asked)
    assert torch.equal(found.delta, codec.carry(delta, LAYOUT, asked.seed))
    assert torch.equal(found.extra["c"], x)
    assert (found.steps, found.examples, found.wire_bytes) == (5, 40, len(payload))
    head = len(payload) - codec.size(LAYOUT) - 4 * LAYOUT.dim
    assert 0 < head < 200, "what travels is the code and a small head"
    for other in (job(x[:-1]), Job(8, 2, 3, x, 5, 0), Job(7, 2, 4, x, 5, 0)):
        told = decode_update(payload, codec, LAYOUT, other)
        assert UpdateValidator().examine(other, told, 0, other.x, {"c": LAYOUT.dim}, True) in {
            "wrong-job",
            "wrong-size",
        }
    with pytest.raises(WireError, match="checksum"):
        decode_update(payload[:-1], codec, LAYOUT, asked)


@pytest.mark.parametrize("name", CODECS)
def test_a_job_comes_to_the_client_as_it_was_sent(name: str) -> None:
    flat = wire.Flat(LAYOUT, Compression(download=CODECS[name]()))
    x = flat.outgoing(torch.randn(LAYOUT.dim, generator=torch.Generator().manual_seed(1)), 3)
    asked = job(x, extra={"c": torch.ones(4)}, compression_rate=0.25)
    for told in (flat, wire.Flat(LAYOUT, Compression(download=CODECS[name]()))):  # the other has forgotten the code
        found = flat.job(told.content(asked))
        assert torch.equal(found.x, x)
        assert torch.equal(found.extra["c"], torch.ones(4))
        assert (found.id, found.client, found.version, found.seed) == (7, 2, 3, asked.seed)
        assert (found.steps, found.rate, found.compression_rate) == (5, 0.5, 0.25)


def test_one_model_is_one_object() -> None:
    """Two jobs of a version share the very array, so that Flower sends it once."""
    flat = wire.Flat(LAYOUT, Compression())
    x = torch.zeros(LAYOUT.dim)
    one, other = (flat.content(Job(n, n, 3, x, 1, n)).array_records[wire.MODEL] for n in (1, 2))
    assert one["x"].object_id == other["x"].object_id
    assert len(one) == 1


def test_a_flat_update_is_recognised_among_named_arrays() -> None:
    initial = ArrayRecord(stock.net().state_dict())
    named = wire.Named(initial, ConfigRecord({"lr": 0.1}), Compression(upload=TopK(rate=0.1)))
    asked = job(named.x)
    content = named.content(asked)
    assert dict(content["config"]) == {"lr": 0.1, "server-round": 4, wire.ASKED: f"7 3 {asked.seed}"}
    delta = torch.zeros_like(named.x)
    delta[:5] = 1.0
    trained = named.arrays(named.x + delta, None)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    message = Message(content, 1, "train")
    coded = coded_reply(message, trained, MetricRecord({"num-examples": 9}), TopK(rate=0.1)).content
    body, size = named.payload(asked, coded)
    assert size == len(body) < 0.3 * 4 * named.layout.dim
    assert torch.allclose(named.read(asked, body).delta, delta, atol=1e-6)
    plain = RecordDict({"arrays": named.arrays(named.x + delta, None), "metrics": MetricRecord({"num-examples": 9})})
    body, size = named.payload(asked, plain)
    found = named.read(asked, body)
    assert torch.allclose(found.delta, delta, atol=1e-6)
    assert (found.examples, size > 4 * named.layout.dim) == (9, True)


@pytest.mark.parametrize("body", [b"\x02\0\0\0[]", b'\x10\0\0\0{"parts":{"a":"x"}}', b'\x0c\0\0\0{"parts":17}'])
def test_a_head_of_another_kind_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        unpack(sealed(body))


def test_a_reply_that_makes_no_sense_is_refused_not_raised() -> None:
    """Whatever a client app returns, the server goes on."""
    initial = ArrayRecord(stock.net().state_dict())
    named = wire.Named(initial, ConfigRecord(), Compression())
    senseless = [
        RecordDict({wire.UPDATE: ArrayRecord({"another": wire.raw_array(b"")})}),
        RecordDict({"arrays": initial, "metrics": MetricRecord({"num-examples": [1, 2]})}),
        RecordDict({"arrays": ArrayRecord({name: wire.raw_array(b"?") for name in initial})}),
    ]
    for dialect in (named, wire.Flat(named.layout, Compression())):
        for reply in senseless:
            with pytest.raises(WireError):
                dialect.understand(job(named.x), reply)


def test_places_of_nodes() -> None:
    nodes = Nodes(3)
    assert nodes.adopt([50, 40])
    assert nodes.client_of == {40: 0, 50: 1}
    assert not nodes.adopt([40, 50])
    assert nodes.adopt([50, 60, 70])
    assert nodes.online == {1, 2, 0}, "70 takes the place of 40, which has gone"
    assert nodes.node_of(0) == 70
    assert not nodes.adopt([50, 60, 70, 80])
    assert nodes.waiting == [80]
    nodes.adopt([60, 70, 90], busy=[1])
    assert nodes.node_of(1) == 50, "a job is still out there"
    assert nodes.waiting == [90]
    again = Nodes(3)
    again.load_state_dict(nodes.state_dict())
    assert again.client_of == nodes.client_of


def test_a_slow_uplink_holds_up_nobody() -> None:
    """One reply takes two seconds to come over the line; thirty others are there long before."""
    double = Double(stock.app, [])
    plain = double.pull_messages

    def slow(message_ids: Iterable[str]) -> list[Message]:
        (identity,) = message_ids
        if identity == "slow":
            time.sleep(2.0)
        return plain([identity])

    double.pull_messages = slow  # type: ignore[method-assign]
    puller = pulling.Puller(double)
    reply = Message(RecordDict(), 1, "train")
    names = ["slow", *(f"m{n}" for n in range(30))]
    double.replies = {name: [reply] for name in names}
    started = time.monotonic()
    for name in names:
        puller.watch(name, 1)
    found = [puller.found.get(timeout=5)[0] for _ in range(30)]
    assert time.monotonic() - started < 1.5
    assert "slow" not in found
    assert puller.found.get(timeout=5)[0] == "slow"
    puller.close()


def test_replies_that_nobody_takes_do_not_pile_up() -> None:
    double = Double(stock.app, [])
    puller = pulling.Puller(double)
    for n in range(200):
        double.replies[f"m{n}"] = [Message(RecordDict(), 1, "train")]
        puller.watch(f"m{n}", 1)
    time.sleep(0.5)
    assert len(double.replies) >= 200 - 3 * pulling.THREADS
    puller.close()
    deadline = time.monotonic() + 5
    while any(t.name == "offbeat-pull" for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_superlink_that_is_away_for_a_moment_is_waited_for() -> None:
    double = Double(stock.app, [])
    double.down = True
    puller = pulling.Puller(double, patience=0.5)
    double.replies["m"] = [Message(RecordDict(), 1, "train")]
    puller.watch("m", 1)
    time.sleep(0.2)
    double.down = False
    assert puller.found.get(timeout=5)[1] is not None
    double.down = True
    puller.watch("n", 1)
    assert isinstance(puller.found.get(timeout=5)[1], ConnectionError)
    puller.close()


def test_a_message_to_a_node_that_is_gone_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only while the node is away does Flower say that the message is lost."""
    monkeypatch.setattr(pulling, "SOONEST", 60.0)
    double = Double(stock.app, [])
    double.join({}, identity=7)
    double.join({}, identity=8)
    puller = pulling.Puller(double)
    watcher = pulling.Watcher(double, puller.look_up)
    watcher.look()
    assert puller.found.get(timeout=5) == ("", None)
    for node in (7, 8):
        double.replies[f"to {node}"] = [Message(RecordDict(), 1, "train")]
        puller.watch(f"to {node}", node)
    double.leave(7)
    watcher.look()
    found = {puller.found.get(timeout=5)[0] for _ in range(2)}
    assert found == {"", "to 7"}, "the other one is not due yet"
    assert puller.found.empty()
    puller.close()
    double.close()
