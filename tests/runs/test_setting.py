"""`setting.json` explains itself."""

from __future__ import annotations

import pytest
from tests.support.experiments import experiment

import offbeat as ob
from offbeat.compression import TopK
from offbeat.environment import Devices
from offbeat.runs.experiment import Experiment
from offbeat.runs.setting import setting

FEDLUCK = {
    "algorithm": ob.algorithms.FedLuck(), "scheduler": ob.Periodic(concurrency=4), "client": ob.SGD(steps=2),
    "compression": ob.Compression(upload=TopK()), "environment": ob.Environment(delay=Devices()),
}  # fmt: skip
AFGA = {"algorithm": ob.algorithms.AFGA(), "scheduler": ob.Rounds(concurrency=4), "client": ob.SGD(steps=2)}
ATTACKED = {"environment": ob.Environment(attack=ob.attacks.SignFlip(share=0.5))}


@pytest.mark.parametrize("made", [experiment(), experiment(**FEDLUCK), experiment(**AFGA), experiment(**ATTACKED)])
def test_every_entry_is_explained(made: Experiment) -> None:
    content = setting(made.assemble())
    assert [*content["contents"]] == [name for name in content if name != "contents"]
