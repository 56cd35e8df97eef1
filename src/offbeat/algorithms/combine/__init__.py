"""How the updates of a step are combined."""

from offbeat.algorithms.combine.base import Combine
from offbeat.algorithms.combine.mean import Mean
from offbeat.algorithms.combine.private import Private
from offbeat.algorithms.combine.robust import Clipped, Krum, Median, TrimmedMean

COMBINES: dict[str, type[Combine]] = {
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "clipped": Clipped,
    "private": Private,
}

__all__ = ["COMBINES", "Clipped", "Combine", "Krum", "Mean", "Median", "Private", "TrimmedMean"]
