"""Large populations: the cost of an idle client, and the page with the measurements."""

from __future__ import annotations

import json

import pytest
from benchmarks import scale
from tests.support.processes import resident_bytes

import offbeat as ob
from offbeat.data import Sampled, Synthetic
from offbeat.environment import Bernoulli
from offbeat.runs.data import Data
from offbeat.runs.experiment import Experiment
from offbeat_bench.engine import simulation

MANY = 200_000
FEW = 1_000
BYTES = 200  # an idle client, at most


def test_an_idle_client_costs_little_memory_in_the_loop() -> None:
    grown = []
    for clients in (FEW, MANY):
        before = resident_bytes()
        loop = simulation("fedbuff", clients, concurrency=100, buffer=10, dim=100)
        for _ in range(10_000):
            loop.turn()
        grown.append(resident_bytes() - before)
    assert grown[1] - grown[0] < BYTES * MANY / 4, "columns of 12 bytes, and what a heap grows by"


def test_an_experiment_stores_nothing_for_clients_that_were_never_drawn() -> None:
    """Data and environment of a million clients take less than a byte each; the pool has its own test."""

    def experiment(clients: int) -> Experiment:
        return Experiment(
            data=Data(source=Synthetic(examples=200), clients=clients, partition=Sampled(size=5)),
            algorithm=ob.CA2FL(), scheduler=ob.Buffered(concurrency=20, buffer=10), executor="vectorized",
            environment=ob.Environment(availability=Bernoulli(probability=0.1, slot=0.5)),
        )  # fmt: skip

    experiment(FEW).assemble()
    before = resident_bytes()
    assembly = experiment(1_000_000).assemble()
    assert assembly.context.data.clients == 1_000_000
    assert resident_bytes() - before < 1_000_000


def test_the_page_is_generated_from_the_figures() -> None:
    found = json.loads(scale.RESULTS.read_text(encoding="utf-8"))
    now = scale.PAGE.read_text(encoding="utf-8")
    assert now == scale.page(found, now), "run: python -m benchmarks.scale --page"
    assert max(row["peak"] for row in found["runs"]) < 2e9
    assert all(cost < BYTES for _, cost in scale.idle_bytes(found["populations"])[2:])


@pytest.mark.parametrize(
    ("number", "shown"), [(5, "5 bytes"), (999.4, "999 bytes"), (999.6, "1 kB"), (123_456, "123 kB"), (1.5e9, "1.5 GB")]
)
def test_sizes(number: float, shown: str) -> None:
    assert scale.size(number) == shown
    assert scale.power(10**7) == "10⁷"
