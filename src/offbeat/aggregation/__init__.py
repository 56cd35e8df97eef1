"""Aggregators: the combination of the updates of a step into one vector."""

from offbeat.aggregation.base import Aggregator
from offbeat.aggregation.mean import Mean
from offbeat.aggregation.private import Private
from offbeat.aggregation.robust import Clipped, Krum, Median, TrimmedMean

AGGREGATORS: dict[str, type[Aggregator]] = {
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "clipped": Clipped,
    "private": Private,
}

__all__ = ["AGGREGATORS", "Aggregator", "Clipped", "Krum", "Mean", "Median", "Private", "TrimmedMean"]
