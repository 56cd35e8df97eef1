"""Replayed devices."""

from __future__ import annotations

import gzip
import json
import pathlib

import pytest
from tests.support import SHARED

import offbeat as ob
from offbeat.data import Synthetic
from offbeat.environment import FedScaleDevices, FlashSpeeds, Mix, Trace, Trip
from offbeat.environment.traces import MIXES, fedscale, flash_absences, flash_events
from offbeat.errors import DataError
from offbeat.models import LR

TRACES = SHARED / "data/traces"
REAL = pytest.mark.skipif(not TRACES.is_dir(), reason="needs device traces in ../shared/data")


def trip(client: int, steps: int = 10, down: int = 1000, up: int = 500) -> Trip:
    return Trip(client, client_key=client * 77, trip_key=5, steps=steps, bytes_down=down, bytes_up=up)


def test_a_fedscale_record_is_replayed_and_wrapped_around() -> None:
    device = fedscale({"active": [10, 50], "inactive": [20, 70], "finish_time": 100})
    assert [device.span(t)[0] for t in (0, 9.9, 10, 19.9, 20, 50, 69, 70, 99, 110, 150)] == [
        False, False, True, True, False, True, True, False, False, True, True,
    ]  # fmt: skip
    assert device.span(12) == (True, 20)
    assert device.span(25) == (False, 50)
    assert device.span(80) == (False, 100)
    assert device.span(312) == (True, 320)


def test_flash_events_and_absences() -> None:
    events = flash_events([[0, 1], [300, 0], [1000, 1], [1200, 2]], 2000.0)
    assert [events.span(t)[0] for t in (0, 299, 300, 1000, 1199, 1200, 1999, 2001)] == [
        True, True, False, True, True, False, False, True,
    ]  # fmt: skip
    absences = flash_absences([[23, 100], [200, 50]], 300.0)
    assert [absences.span(t)[0] for t in (0, 22, 23, 122, 123, 199, 200, 249, 250, 299)] == [
        True, True, False, False, True, True, False, False, True, True,
    ]  # fmt: skip


def test_a_span_always_ends_later(tmp_path: pathlib.Path) -> None:
    device = fedscale({"active": [0, 5], "inactive": [5, 9], "finish_time": 10})
    now = 0.0
    for _ in range(100):
        until = device.span(now)[1]
        assert until > now
        now = until


def test_files_in_every_format(tmp_path: pathlib.Path) -> None:
    (tmp_path / "f.json").write_text(json.dumps({"1": {"active": [0], "inactive": [5], "finish_time": 10}}))
    (tmp_path / "e.json.gz").write_bytes(
        gzip.compress(json.dumps({"clients": {"1": {"2st": [[0, 1], [5, 0]]}}}).encode())
    )
    (tmp_path / "a.json").write_text(json.dumps({"clients": {"1": [[5, 4]]}}))
    for name in ("f.json", "e.json.gz", "a.json"):
        law = Trace(file=str(tmp_path / name))
        assert law.span(0, 0, 1.0)[0]
        assert not law.span(7, 0, 5.5)[0], "client 7 of one record is the first again"
    (tmp_path / "x.json").write_text('{"1": 3}')
    with pytest.raises(DataError, match=r"x\.json"):
        Trace(file=str(tmp_path / "x.json")).span(0, 0, 0.0)
    with pytest.raises(DataError, match="cannot be read"):
        Trace(file=str(tmp_path / "none.json")).span(0, 0, 0.0)


@REAL
def test_real_fedscale_capacities() -> None:
    law = FedScaleDevices(file=str(TRACES / "fedscale/client_device_capacity_first100.json"), examples_per_step=10)
    # Client 0 is the record "1": 153 ms an example, 2,209.6 kbit/s.
    assert law.seconds(trip(0, steps=4, down=0, up=0)) == pytest.approx(4 * 10 * 0.153)
    assert law.seconds(trip(0, steps=0, down=10_000, up=5_000)) == pytest.approx(15_000 * 8 / 2_209_615.982329485)
    assert law.seconds(trip(100)) == law.seconds(trip(0)), "a hundred records"
    alpha, beta = law.profile(1, 0, 1_000_000) or (0, 0)
    assert (alpha, beta) == pytest.approx((0.39, 8e6 / 18_437_311.985652217))


@REAL
def test_real_flash_speeds_are_the_phones_means() -> None:
    law = FlashSpeeds(file=str(TRACES / "flash/speed_distri.json"), step_seconds=0.0)
    first = 4935.2  # kbit/s up of the first phone, deviation 2767
    speeds = [8 * 500 / 1000 / law.seconds(Trip(0, 0, k, 1, 0, 500)) for k in range(4000)]
    assert sum(speeds) / len(speeds) == pytest.approx(first, rel=0.05)
    assert min(speeds) >= 0.1 * first - 1e-6


@REAL
@pytest.mark.parametrize(
    "file",
    [
        "fedscale/client_behave_trace_first100.json",
        "flash_availability/availability_6d_n300.json.gz",
        "flash_availability/unavailability_48h_n300.json.gz",
    ],
)
def test_a_run_on_real_traces(file: str) -> None:
    environment = ob.Environment(
        delay=Mix(kind="phones", examples_per_step=10),
        availability=Trace(file=str(TRACES / file)),
        on_leave="lost",
        trip_timeout=3600.0,
    )
    result = ob.run(
        data=Synthetic(examples=600, test_examples=100),
        clients=60,
        model=LR(),
        algorithm=ob.FedBuff(),
        environment=environment,
        scheduler=ob.Continuous(concurrency=20, buffer=5),
        client=ob.SGD(lr=0.1, epochs=1, batch_size=10),
        rounds=30,
    )
    assert result.summary["rounds"] == 30
    assert result.accuracy > 0.5


@pytest.mark.parametrize("kind", MIXES)
def test_a_mix_has_the_medians_of_its_trace(kind: str) -> None:
    step, line, _ = MIXES[kind]
    law = Mix(kind=kind, examples_per_step=10)  # type: ignore[arg-type]
    profiles = sorted(law.profile(i, i * 7919 + 1, 1_000_000)[0] for i in range(4001))
    assert profiles[2000] == pytest.approx(10 * step, rel=0.1)
    lines = sorted(1_000_000 / law.profile(i, i * 7919 + 1, 1_000_000)[1] for i in range(4001))
    assert lines[2000] == pytest.approx(line * 125, rel=0.1)


@pytest.mark.parametrize(
    "scheduler", [ob.schedulers.Anarchic(buffer=2, idle=1.0), ob.Buffered(concurrency=2, buffer=1)]
)
def test_a_device_that_is_awake_seldom_is_found(
    scheduler: ob.Buffered | ob.schedulers.Anarchic, tmp_path: pathlib.Path
) -> None:
    """Available ten seconds of every 120: a server that looks at fixed intervals could always miss it."""
    record = {"active": [5], "inactive": [15], "finish_time": 120}
    (tmp_path / "t.json").write_text(json.dumps({str(i): record for i in range(4)}))
    result = ob.run(
        data=Synthetic(examples=100, test_examples=50),
        clients=4,
        model=LR(),
        algorithm=ob.algorithms.AFACD(),
        scheduler=scheduler,
        environment=ob.Environment(
            delay=Mix(kind="silos", examples_per_step=1), availability=Trace(file=str(tmp_path / "t.json"))
        ),
        client=ob.SGD(steps=1, batch_size=4),
        rounds=10,
    )
    assert result.summary["updates"] >= 10


def test_files_of_the_wrong_kind_are_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "list.json").write_text("[1, 2]")
    for law in (FlashSpeeds(file=str(tmp_path / "list.json")), FedScaleDevices(file=str(tmp_path / "list.json"))):
        with pytest.raises(DataError, match=r"list\.json': expected .* for each device"):
            law.seconds(trip(0))
