"""The methods of a search, and the trials that they make."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from offbeat.errors import ConfigError, nearest
from offbeat.metric_info import MetricInfo
from offbeat.options import NonNegativeInt, Options, PositiveInt
from offbeat.random import key, uniform
from offbeat.runs.sweep import Cell, Sweep
from offbeat.tuning.changes import UNKNOWN, accepts, changed
from offbeat.tuning.sampler import Sampler
from offbeat.tuning.space import Space

Execute = Callable[[Sweep], Mapping[str, Mapping[str, Any]]]
"""Runs a sweep and returns the summaries by run folder: empty for a run that diverged."""

BATCH = 4  # trials per rule that Optuna suggests before it sees their results
FRESH = 5  # seeds of a comparison
NEVER = 1e9  # seconds


@dataclass(kw_only=True, frozen=True)
class Search(Options):
    """How to search."""

    method: Literal["random", "grid", "asha", "optuna"] = "random"
    """How trials are chosen."""
    trials: PositiveInt | None = None
    """Trials of each rule; by default 20, or the whole grid."""
    seeds: tuple[NonNegativeInt, ...] = (0,)
    """Seeds with which each trial is run; the metric is their mean."""
    sampler_seed: NonNegativeInt = 0
    """Seed of the choice of trials."""
    metric: str | None = None
    """The metric whose final value is compared; the main one by default."""
    rungs: PositiveInt = 3
    """Numbers of rounds that asha tries: all of them, a third, a ninth …"""
    reduction: PositiveInt = 3
    """One in this many trials reaches the next rung of asha, which is this many times longer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.seeds:
            raise ConfigError("give at least one seed", key="seeds")
        if self.reduction < 2:
            raise ConfigError(f"{self.reduction} would promote every trial; give 2 or more", key="reduction")

    @property
    def shares(self) -> list[float]:
        """The share of the rounds at each rung."""
        last = self.rungs - 1 if self.method == "asha" else 0
        return [1 / self.reduction ** (last - rung) for rung in range(last + 1)]


@dataclass(frozen=True)
class Trial:
    """The hyperparameters of one trial, with its result."""

    rule: str
    """The label of the variant whose trial this is."""
    number: int
    params: dict[str, Any]
    rung: int = 0
    share: float = 1.0
    """The share of the rounds that it ran."""
    value: float | None = None
    """The mean of the metric's final value over the seeds; None if a run diverged."""
    values: tuple[float, ...] = ()
    target_seconds: float | None = None
    """The mean virtual time to the target; None if a run did not reach it, or there is none."""

    def label(self, single: bool, rungs: int) -> str:
        """Return the label of the trial's runs; with a single rule, without its name."""
        rule = [] if single else [self.rule]
        return " ".join([*rule, f"trial-{self.number:03}", *([f"rung-{self.rung + 1}"] if rungs > 1 else [])])


class Tuning:
    """A search over the hyperparameters of one or several rules, which get equal numbers of trials.

    The same arguments give the same trials, so that the same search again continues where it was interrupted.

    Args:
        rules: One run per rule; all seeds are those of the search.
        space: What each key may be. A rule that does not have a key is searched without it.
        search: How to search.

    Raises:
        ConfigError: No rule has one of the keys, or the method does not suit the space.
    """

    def __init__(self, rules: Sequence[Cell], space: Space, search: Search) -> None:
        self.rules = {rule.label: rule for rule in rules}
        self.space, self.search = space, search
        self.spaces = {label: {k: d for k, d in space.items() if accepts(rule, k, d.at(0.5))}
                       for label, rule in self.rules.items()}  # fmt: skip
        self._check_keys()
        self.info = self._metric()
        self._timed = all(rule.experiment().evaluation.stop_at_target for rule in rules)
        self.trials = self._number()
        rounds = min(rule.experiment().rounds for rule in rules)
        if search.reduction ** (len(search.shares) - 1) > rounds:
            raise ConfigError(f"{search.rungs} rungs are too many for {rounds} rounds", key="rungs")

    def run(self, execute: Execute) -> list[Trial]:
        """Run all trials and return them, those with most rounds first, and the best of them first."""
        done: list[Trial] = []
        if self.search.method == "optuna":
            for batch in self._suggested():
                done += batch.told(self._run(batch.trials, execute))
            return self.ranked(done)
        now = [Trial(rule, number, params) for rule in self.rules for number, params in enumerate(self._points(rule))]
        for rung, share in enumerate(self.search.shares):
            if not now:  # all diverged
                break
            ended = self._run([replace(trial, rung=rung, share=share) for trial in now], execute)
            done += ended
            now = self._promoted(ended)
        return self.ranked(done)

    def best(self, trials: Sequence[Trial]) -> dict[str, Trial]:
        """Return the best trial of each rule that used the whole budget; a rule whose trials all diverged has none."""
        whole = [trial for trial in self.ranked(trials) if trial.share == 1 and trial.value is not None]
        found = {rule: next((trial for trial in whole if trial.rule == rule), None) for rule in self.rules}
        return {rule: trial for rule, trial in found.items() if trial is not None}

    def cell(self, trial: Trial, seed: int, label: str | None = None) -> Cell:
        """Return a run with the hyperparameters of a trial."""
        label = trial.label(len(self.rules) == 1, len(self.search.shares)) if label is None else label
        return changed(self.rules[trial.rule], trial.params, label, seed, trial.share)

    def comparison(self, trials: Sequence[Trial], seeds: Sequence[int]) -> Sweep:
        """Return the runs that compare the best of every rule.

        Args:
            trials: All trials.
            seeds: Seeds that the search did not use; by default the first five.

        Raises:
            ConfigError: The search used one of the seeds.
        """
        self.check_fresh(seeds)
        best = self.best(trials)
        return Sweep([self.cell(t, seed, self.name(t)) for t in best.values() for seed in seeds or self.fresh()])

    def name(self, best: Trial) -> str:
        """Return the name of the best trial of a rule."""
        return "best" if len(self.rules) == 1 else best.rule

    def check_fresh(self, seeds: Sequence[int]) -> None:
        """Raise an error if the search used one of the seeds."""
        if both := sorted(set(seeds) & set(self.search.seeds)):
            raise ConfigError(
                f"the search used {'seed' if len(both) == 1 else 'seeds'} {', '.join(map(str, both))}: what it chose "
                f"looks better there than it is. Compare with others, such as {', '.join(map(str, self.fresh()))}",
                key="seeds",
            )

    def fresh(self) -> list[int]:
        """Return seeds that the search does not use."""
        return list(itertools.islice((seed for seed in itertools.count() if seed not in self.search.seeds), FRESH))

    def order(self, trial: Trial) -> float:
        """Return a number that is lower for a better trial: by the metric, or by the time to the target.

        The time counts if runs stop at their target; those that do not reach it follow, ordered by the metric.
        """
        if trial.value is None:
            return math.inf
        if self._timed and trial.target_seconds is not None:
            return trial.target_seconds
        return (NEVER if self._timed else 0.0) + (-trial.value if self.info.higher_is_better else trial.value)

    def ranked(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return trials, those with most rounds first, and the best of them first."""
        return sorted(trials, key=lambda trial: (-trial.share, self.order(trial)))

    # How trials are chosen -------------------------------------------------------------------------------------

    def _points(self, rule: str) -> list[dict[str, Any]]:
        space = self.spaces[rule]
        if self.search.method == "grid":
            return [dict(zip(space, point, strict=True)) for point in itertools.product(*map(_listed, space.items()))]
        # A number is a function of the seed, the trial and the key: more trials continue a search, and the rules'
        # n-th trials agree in the keys that they share.
        seed = self.search.sampler_seed
        return [
            {name: each.at(uniform(key(seed, "tune", number, name))) for name, each in space.items()}
            for number in range(self.trials)
        ]

    def _suggested(self) -> Iterator[_Batch]:
        samplers = {
            rule: Sampler(space, key(self.search.sampler_seed, "tune", rule)) for rule, space in self.spaces.items()
        }
        for first in range(0, self.trials, BATCH):
            numbers = range(first, min(first + BATCH, self.trials))
            asked = [(rule, number, sampler.ask()) for rule, sampler in samplers.items() for number in numbers]
            yield _Batch(
                [Trial(rule, number, params) for rule, number, (_, params) in asked],
                [(samplers[rule], handle) for rule, _, (handle, _) in asked],
                self.order,
            )

    def _promoted(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials of a rung that reach the next one: equally many of each rule."""
        count = max(1, len(trials) // len(self.rules) // self.search.reduction)
        ranked = [trial for trial in self.ranked(trials) if trial.value is not None]
        return [
            trial for rule in self.rules for trial in [t for t in ranked if t.rule == rule][:count]
        ]  # fmt: skip

    def _run(self, trials: Sequence[Trial], execute: Execute) -> list[Trial]:
        seeds = self.search.seeds
        cells = [[self.cell(trial, seed) for seed in seeds] for trial in trials]
        for group in cells:
            group[0].experiment()  # an error shows before anything is run
        summaries = execute(Sweep(list(itertools.chain.from_iterable(cells))))
        return [
            self._ended(trial, [summaries[cell.folder] for cell in group])
            for trial, group in zip(trials, cells, strict=True)
        ]

    def _ended(self, trial: Trial, summaries: Sequence[Mapping[str, Any]]) -> Trial:
        values = [summary.get(self.info.name) for summary in summaries]
        times = [summary.get("target_seconds") for summary in summaries]
        known = [float(value) for value in values if value is not None and not math.isnan(value)]
        reached = [float(time) for time in times if time is not None]
        return replace(
            trial,
            value=statistics.fmean(known) if len(known) == len(values) else None,
            values=tuple(known),
            target_seconds=statistics.fmean(reached) if len(reached) == len(times) else None,
        )

    # Checks ----------------------------------------------------------------------------------------------------

    def _check_keys(self) -> None:
        for name, each in self.space.items():
            if not any(name in space for space in self.spaces.values()):
                first = next(iter(self.rules.values()))
                changed(first, {name: each.at(0.5)}, first.label, first.seed).experiment()  # says what is valid
        for rule, space in self.spaces.items():
            if not space:
                raise ConfigError(f"{UNKNOWN}s: {rule} has none of {', '.join(self.space)}", key="space")

    def _metric(self) -> MetricInfo:
        name = self.search.metric
        infos = [_info(rule, name) for rule in self.rules.values()]
        if len(set(infos)) > 1:
            raise ConfigError("the rules have different metrics; give the one to compare", key="metric")
        return infos[0]

    def _number(self) -> int:
        if self.search.method != "grid":
            return self.search.trials or 20
        sizes = {rule: math.prod(len(_listed(entry)) for entry in space.items()) for rule, space in self.spaces.items()}
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{rule} {size}" for rule, size in sizes.items())
            raise ConfigError(f"rules would get unequal numbers of trials ({shown}); use random", key="method")
        size = next(iter(sizes.values()))
        if self.search.trials not in (None, size):
            raise ConfigError(f"the grid has {size} points, not {self.search.trials}; remove it", key="trials")
        return size


@dataclass(frozen=True)
class _Batch:
    """Trials that Optuna suggested, and whom to tell their results."""

    trials: list[Trial]
    askers: list[tuple[Sampler, Any]]
    order: Callable[[Trial], float]

    def told(self, ended: list[Trial]) -> list[Trial]:
        for (sampler, handle), trial in zip(self.askers, ended, strict=True):
            sampler.tell(handle, self.order(trial))
        return ended


def _listed(entry: tuple[str, Any]) -> Sequence[Any]:
    name, each = entry
    values: Sequence[Any] | None = each.values()
    if values is None:
        raise ConfigError("a grid needs a list of values, not a range; or use random", key=name)
    return values


def _info(rule: Cell, name: str | None) -> MetricInfo:
    task = rule.experiment().task
    infos = {info.name: info for info in task.metric_infos()}
    if name is not None and name not in infos:
        raise ConfigError(f"unknown metric {name!r}; {nearest(name, list(infos))}", key="metric")
    info = task.main if name is None else infos[name]
    if info.higher_is_better is None:
        raise ConfigError(
            f"whether higher values of {info.name!r} are better is unknown; pass Metric(…, higher_is_better=…)",
            key="metric",
        )
    return info
