"""Experiments with planted bugs: modules next to a TOML that change offbeat when they are imported."""

from __future__ import annotations

import pathlib

TOML = """
rounds = {rounds}
executor = "sequential"
[algorithm]
name = "{algorithm}"
[client]
name = "sgd"
lr = 0.1
steps = 2
batch_size = 8
[scheduler]
{scheduler}concurrency = 4
buffer = 3
[environment]
loss = 0.05
trip_timeout = 6.0
delay = "half-normal"
[data]
name = "synthetic"
examples = 300
test_examples = 200
features = 12
classes = 3
clients = 8
[evaluation]
every = 6
[model]
name = "{model}"
"""

MODEL = """
import torch

def make(**_):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
"""

FORGETFUL = """
from dataclasses import dataclass
from typing import ClassVar
import torch
import offbeat as ob

@dataclass(kw_only=True)
class Rule(ob.FedBuff):
    state_names: ClassVar[tuple[str, ...]] = ()  # the buffer is missing
"""

BUGS = {
    "a trip that is lost has no row": """
from offbeat.runs.folder import UpdateLog
plain = UpdateLog.append
UpdateLog.append = lambda self, row: None if row[7] == 1 else plain(self, row)
""",
    "no guard against a second update": """
from offbeat.server.loop import Loop
class Everything(set):
    def __contains__(self, job): return True
    def remove(self, job): self.discard(job)
plain = Loop.__init__
def made(self, *args, **more):
    plain(self, *args, **more)
    self.out = Everything()
Loop.__init__ = made
""",
    "a lost client is never free": """
from offbeat.server.loop import Loop
from offbeat.server.events import Lost
from offbeat.server.pool import Pool
plain, turn = Pool.release, Loop.turn
def turned(self):
    receive = self.transport.receive
    def received():
        event = receive()
        self.pool.deaf = isinstance(event, Lost)
        return event
    self.transport.receive = received
    try:
        return turn(self)
    finally:
        self.transport.receive = receive
Loop.turn = turned
Pool.release = lambda self, client: None if getattr(self, "deaf", False) and client < 2 else plain(self, client)
""",
    "a gate that is open": """
from offbeat.server.validation import UpdateValidator
UpdateValidator.examine = lambda self, job, update, *more: update
""",
    "what is not answered shakes the model": """
import torch
from offbeat.server.loop import Loop
turn = Loop.turn
def turned(self):
    outcome = turn(self)
    if getattr(outcome.event, "reason", "") == "no answer":
        self.algorithm.x = -100.0 * self.algorithm.x
    return outcome
Loop.turn = turned
""",
    "no message for a disk that is full": """
import contextlib
from offbeat.runs.run import Run
Run._failing = lambda self: contextlib.nullcontext()
""",
}


def write(place: pathlib.Path, bug: str = "", algorithm: str = "fedbuff", rounds: int = 12) -> pathlib.Path:
    """Write a TOML to a folder, with the module of its model, and return its path."""
    (place / "planted.py").write_text(bug + MODEL)
    (place / "forgetful.py").write_text(FORGETFUL)
    scheduler = 'name = "buffered"\n' if ":" in algorithm else ""
    text = TOML.format(rounds=rounds, algorithm=algorithm, scheduler=scheduler, model="planted:make" if bug else "lr")
    (place / "small.toml").write_text(text)
    return place / "small.toml"
