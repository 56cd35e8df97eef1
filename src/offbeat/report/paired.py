"""Paired comparisons of experiments, seed by seed.

For a given seed, all algorithms see the same data, initial model, delays and batches (common random numbers), so that
their differences vary less than their results. The tests are the paired t-test and the sign test.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from offbeat.errors import OffbeatError, nearest
from offbeat.metric_info import MetricInfo
from offbeat.report.read import Record
from offbeat.report.student import critical, holm, sign_test, two_sided

PLACES = {
    "version": "version",
    "virtual_seconds": "virtual_seconds",
    "bytes": "bytes_up",
    "bytes_up": "bytes_up",
    "updates": "updates",
    "client_steps": "client_steps",
}
"""Names of the axes on which a point can be given, and their column in `metrics.jsonl`."""
ALL_PAIRS = 5  # most experiments of which all pairs are compared
PROBLEM = ("data", "model", "task")  # parts of a config in which the runs of a pair agree


@dataclass(frozen=True)
class Difference:
    """The difference `label` − `baseline` of two experiments, over the seeds that both have."""

    label: str
    baseline: str
    seeds: tuple[int | None, ...]
    values: tuple[float, ...]
    """The difference of each seed, in the unit of the file: a fraction for percentages."""
    mean: float
    low: float | None = None
    """Lower end of the confidence interval, from Student's t distribution; None for a single seed."""
    high: float | None = None
    p: float | None = None
    """p-value of the paired t-test; None for a single seed, and if all differences are equal."""
    p_holm: float | None = None
    """The same after Holm's correction for the number of comparisons."""
    sign_p: float | None = None
    """p-value of the exact two-sided sign test; None for a single seed."""
    sign_p_holm: float | None = None

    @property
    def above(self) -> int:
        """The number of seeds with a positive difference."""
        return sum(value > 0 for value in self.values)

    @property
    def below(self) -> int:
        """The number of seeds with a negative difference."""
        return sum(value < 0 for value in self.values)


@dataclass(frozen=True)
class Comparison:
    """The values of several experiments and their paired differences."""

    metric: MetricInfo
    at: Mapping[str, float]
    """The point at which the runs are compared, such as {"virtual_seconds": 100}; empty for the last evaluation."""
    confidence: float
    differences: Sequence[Difference] = ()
    notes: Sequence[str] = field(default=())
    """What was left out and why, in words."""
    values: Mapping[str, Mapping[int | None, float]] = field(default_factory=dict)
    """The value of each run, by label and seed, without the runs that are left out."""


def compare(
    records: Sequence[Record],
    metric: str | None = None,
    at: Mapping[str, float] | None = None,
    baseline: str | None = None,
    confidence: float = 0.95,
) -> Comparison:
    """Compare experiments seed by seed.

    Args:
        records: The runs; those with one label are seeds of one experiment.
        metric: Name of a metric; None for the main metric of the first run.
        at: Point at which to compare, as `{"virtual_seconds": 100}`, `{"version": …}`, `{"bytes": …}`, `{"updates": …}`
            or `{"client_steps": …}`: the last evaluation that is not after it counts. None for the last evaluation of
            finished runs.
        baseline: Label with which all others are compared. None for all pairs on the same data, model and task; with
            more than five experiments, for each against the first one.
        confidence: Probability that the confidence interval of one comparison contains the expected difference.

    Raises:
        OffbeatError: An argument does not fit the runs.
    """
    if not 0 < confidence < 1:
        raise OffbeatError(f"confidence: {confidence:g} is not between 0 and 1")
    info, place = metric_of(records, metric), place_of(at)
    values, notes = _values(records, info, place)
    found = []
    for one, other in _pairs(records, list(values), baseline, notes):
        first, second = values[one], values[other]
        seeds = [seed for seed in second if seed in first]
        for label, own in ((one, first), (other, second)):
            if alone := [seed for seed in own if seed not in seeds]:
                partner, verbs = other if label == one else one, "has {} is" if len(alone) == 1 else "have {} are"
                notes.append(f"{_named(alone)} of {label} {verbs.format(f'no partner in {partner} and')} left out")
        if seeds:
            found.append(difference(other, one, {seed: second[seed] - first[seed] for seed in seeds}, confidence))
    return Comparison(
        info, dict([place] if place else []), confidence, _adjusted(found), [*notes, *_few(found)], values
    )


def difference(label: str, baseline: str, values: Mapping[int | None, float], confidence: float = 0.95) -> Difference:
    """Return mean, confidence interval and p-values of differences by seed, before Holm's correction."""
    given = list(values.values())
    found = Difference(label, baseline, tuple(values), tuple(given), statistics.fmean(given))
    if len(given) < 2:
        return found
    found = dataclasses.replace(found, sign_p=sign_test(found.above, found.below))
    error = statistics.stdev(given) / math.sqrt(len(given))
    if error <= 1e-12 * max(map(abs, given)):  # equal up to rounding: the t-test is not defined
        return dataclasses.replace(found, low=found.mean, high=found.mean)
    half = error * critical(confidence, len(given) - 1)
    p = two_sided(found.mean / error, len(given) - 1)
    return dataclasses.replace(found, low=found.mean - half, high=found.mean + half, p=p)


def shared_point(records: Sequence[Record], column: str) -> dict[str, float]:
    """Return the last point on an axis that all runs reach; no point without evaluations."""
    ends = [record.metrics[-1].get(column) or 0 for record in records if record.metrics]
    return {column: min(ends)} if ends else {}


def metric_of(records: Sequence[Record], name: str | None) -> MetricInfo:
    """Return a metric that the runs have, by name; the main metric of the first run by default."""
    known = {info.name: info for record in reversed(records) for info in record.task_metrics}
    if name is None and records:
        return records[0].metric
    if name not in known:
        raise OffbeatError(f"metric: the runs have no {name!r}; {nearest(name, known)}")
    return known[name]


def place_of(at: Mapping[str, float] | None) -> tuple[str, float] | None:
    """Return the column in `metrics.jsonl` and the value of a point."""
    if not at:
        return None
    for name in at:
        if name not in PLACES:
            raise OffbeatError(f"at: there is no axis {name!r}; {nearest(name, PLACES)}")
    if len(at) > 1:
        raise OffbeatError(f"at: give one of {', '.join(PLACES)}, not {' and '.join(at)}")
    ((name, value),) = at.items()
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value) or value < 0:
        raise OffbeatError(f"at: {name} = {value!r} is not a number from 0")
    return PLACES[name], float(value)


def until(record: Record, place: tuple[str, float] | None) -> Sequence[Mapping[str, Any]]:
    """Return the evaluations that are not after a point."""
    return [line for line in record.metrics if place is None or (line.get(place[0]) or 0) <= place[1]]


def value_at(record: Record, metric: str, place: tuple[str, float] | None) -> float | None:
    """Return the metric at the last evaluation that is not after a point; None if there is none or it is undefined."""
    lines = until(record, place)
    value = lines[-1].get(metric) if lines else None
    return None if value is None or math.isnan(value) else float(value)


def _values(
    records: Sequence[Record], info: MetricInfo, place: tuple[str, float] | None
) -> tuple[dict[str, dict[int | None, float]], list[str]]:
    """Return the values by label and seed, and notes on runs that are left out or ended before the point."""
    values: dict[str, dict[int | None, float]] = {}
    notes, early = [], []
    for record in records:
        group = values.setdefault(record.label, {})
        name = f"{record.label}, seed {record.seed}"
        there = place is not None and bool(record.metrics) and (record.metrics[-1].get(place[0]) or 0) >= place[1]
        value = value_at(record, info.name, place)
        if record.state != "finished" and not there:
            notes.append(f"{name}, is {record.state} and is left out")
        elif value is None:
            notes.append(f"{name}, has no {info.name} there and is left out")
        else:
            group[record.seed] = value
            early += [] if there or place is None else [record.label]
    for label in dict.fromkeys(early):
        notes.append(f"{label}: {early.count(label)} of {len(values[label])} runs ended before that point; "
                     "their last evaluation counts")  # fmt: skip
    return values, notes


def _pairs(
    records: Sequence[Record], labels: Sequence[str], baseline: str | None, notes: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of labels to compare, the baseline first."""
    if baseline is not None:
        if baseline not in labels:
            raise OffbeatError(f"baseline: there is no experiment {baseline!r}; there are {', '.join(labels)}")
        yield from ((baseline, label) for label in labels if label != baseline)
        return
    problems = {record.label: [repr(record.config.get(part)) for part in PROBLEM] for record in reversed(records)}
    if len(labels) > ALL_PAIRS:
        notes.append(f"each is compared with {labels[0]}; choose another baseline for other pairs")
    others = 0
    for one, other in combinations(labels, 2) if len(labels) <= ALL_PAIRS else ((labels[0], b) for b in labels[1:]):
        if problems[one] == problems[other]:
            yield one, other
        else:
            others += 1
    if others:
        notes.append(f"pairs of experiments on other data, another model or another task ({others}) are not compared")


def _adjusted(found: Sequence[Difference]) -> list[Difference]:
    pairs = zip(found, holm([each.p for each in found]), holm([each.sign_p for each in found]), strict=True)
    return [dataclasses.replace(each, p_holm=p, sign_p_holm=sign) for each, p, sign in pairs]


def _few(found: Sequence[Difference]) -> list[str]:
    """Return notes on comparisons with too few seeds for a test."""
    notes = []
    if single := [each for each in found if len(each.values) < 2]:
        count = "one comparison has" if len(single) == 1 else f"{len(single)} comparisons have"
        notes.append(f"{count} a single seed: no interval and no p-value; repeat the runs with more seeds")
    equal = [each for each in found if len(each.values) > 1 and each.p is None]
    notes += [f"{each.label} − {each.baseline}: all differences are equal, the t-test is not defined" for each in equal]
    if counts := [len(each.values) for each in found if 2 <= len(each.values) <= 5]:
        notes.append(f"with {min(counts)} seeds the sign test cannot give a p-value below {2 / 2 ** min(counts):.3g}")
    return notes


def _named(seeds: Sequence[int | None]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
