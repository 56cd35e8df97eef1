"""Fixtures and helpers that several test modules share.

Test modules import from here, never from each other. The most common helpers are available as `tests.support.<name>`;
the others live in one module per topic.
"""

from tests.support.paths import ROOT, SHARED
from tests.support.processes import gone, interrupt_after, running, wait_until
from tests.support.updates import Arrivals, Quadratics, job, update

__all__ = [
    "ROOT",
    "SHARED",
    "Arrivals",
    "Quadratics",
    "gone",
    "interrupt_after",
    "job",
    "running",
    "update",
    "wait_until",
]
