"""Tests of offbeat.flower.wire: jobs and updates as Flower messages."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from tests.deploy import stock

from offbeat.compression import CODECS, Compression, TopK
from offbeat.flower import coded_reply, wire
from offbeat.messages import Job
from offbeat.payload import WireError
from offbeat.vectors import Layout

LAYOUT = Layout(("w", "b"), (torch.Size((30, 10)), torch.Size((10,))))


def make_job(x: torch.Tensor, **fields: object) -> Job:
    return Job(id=7, client=2, version=3, x=x, steps=5, seed=2**63 + 11, rate=0.5, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CODECS)
def test_clients_decode_the_job_that_was_sent(name: str) -> None:
    flat = wire.FlatFormat(LAYOUT, Compression(download=CODECS[name]()))
    x = flat.outgoing(torch.randn(LAYOUT.dim, generator=torch.Generator().manual_seed(1)), 3)
    job = make_job(x, extra={"c": torch.ones(4)}, compression_rate=0.25)
    without_cache = wire.FlatFormat(LAYOUT, Compression(download=CODECS[name]()))
    for sender in (flat, without_cache):
        decoded = flat.job(sender.content(job))
        assert torch.equal(decoded.x, x)
        assert torch.equal(decoded.extra["c"], torch.ones(4))
        assert (decoded.id, decoded.client, decoded.version, decoded.seed) == (7, 2, 3, job.seed)
        assert (decoded.steps, decoded.rate, decoded.compression_rate) == (5, 0.5, 0.25)


def test_jobs_of_a_version_share_one_object() -> None:
    """Flower addresses objects by their content, so it uploads the shared array once."""
    flat = wire.FlatFormat(LAYOUT, Compression())
    x = torch.zeros(LAYOUT.dim)
    first, second = (flat.content(Job(n, n, 3, x, 1, n)).array_records[wire.MODEL] for n in (1, 2))
    assert first["x"].object_id == second["x"].object_id
    assert len(first) == 1


def test_coded_and_plain_replies_carry_the_same_update() -> None:
    initial = ArrayRecord(stock.net().state_dict())
    arrays_format = wire.StateDictFormat(initial, ConfigRecord({"lr": 0.1}), Compression(upload=TopK(rate=0.1)))
    job = make_job(arrays_format.x)
    content = arrays_format.content(job)
    assert dict(content["config"]) == {"lr": 0.1, "server-round": 4, wire.JOB_KEY: f"7 3 {job.seed}"}
    delta = torch.zeros_like(arrays_format.x)
    delta[:5] = 1.0
    trained = arrays_format.arrays(arrays_format.x + delta, None)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    message = Message(content, 1, "train")
    coded = coded_reply(message, trained, MetricRecord({"num-examples": 9}), TopK(rate=0.1)).content
    body, size = arrays_format.extract_payload(job, coded)
    assert size == len(body) < 0.3 * 4 * arrays_format.layout.dim
    assert torch.allclose(arrays_format.decode_payload(job, body).delta, delta, atol=1e-6)
    plain = RecordDict({"arrays": trained, "metrics": MetricRecord({"num-examples": 9})})
    body, size = arrays_format.extract_payload(job, plain)
    update = arrays_format.decode_payload(job, body)
    assert torch.allclose(update.delta, delta, atol=1e-6)
    assert (update.examples, size > 4 * arrays_format.layout.dim) == (9, True)


def test_malformed_replies_raise_wire_errors() -> None:
    """Whatever a client app returns, the server continues."""
    initial = ArrayRecord(stock.net().state_dict())
    arrays_format = wire.StateDictFormat(initial, ConfigRecord(), Compression())
    malformed = [
        RecordDict({wire.UPDATE: ArrayRecord({"another": wire.raw_array(b"")})}),
        RecordDict({"arrays": initial, "metrics": MetricRecord({"num-examples": [1, 2]})}),
        RecordDict({"arrays": ArrayRecord({name: wire.raw_array(b"?") for name in initial})}),
    ]
    for each in (arrays_format, wire.FlatFormat(arrays_format.layout, Compression())):
        for reply in malformed:
            with pytest.raises(WireError):
                each.decode_reply(make_job(arrays_format.x), reply)
