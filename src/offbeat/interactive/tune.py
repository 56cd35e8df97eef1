"""The search for hyperparameters from Python."""

from __future__ import annotations

import functools
import html
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from offbeat.errors import ConfigError, OffbeatError
from offbeat.interactive.frames import frame
from offbeat.interactive.sweep import SweepResult, cells_of, execute, result_of
from offbeat.runs.callbacks import Callback
from offbeat.runs.experiment import Experiment
from offbeat.tuning import outcome
from offbeat.tuning.search import Search, Trial, Tuning
from offbeat.tuning.space import space_of

if TYPE_CHECKING:
    from offbeat.report.figure import InlineFigure

Path = str | os.PathLike[str]
SEARCH = [entry.name for entry in fields(Search)]


@dataclass(frozen=True, repr=False, eq=False)
class TuneResult:
    """The result of a search, from `ob.tune`.

    Args:
        folder: The folder of the search.
        tuning: The search.
        trials: All trials: those with most rounds first, and the best of them first.
        data_dir: Where data sets are stored.
    """

    folder: pathlib.Path
    tuning: Tuning
    trials: Sequence[Trial]
    data_dir: Path | None = None

    @functools.cached_property
    def best(self) -> dict[str, Trial]:
        """The best trial of each rule, by its label."""
        return self.tuning.best(self.trials)

    @property
    def trial(self) -> Trial:
        """The best trial of all.

        Raises:
            OffbeatError: All trials diverged.
        """
        if not self.best:
            raise OffbeatError("all trials diverged; search smaller learning rates")
        return min(self.best.values(), key=self.tuning.order)

    @property
    def params(self) -> dict[str, Any]:
        """The hyperparameters of the best trial."""
        return self.trial.params

    @property
    def experiment(self) -> Experiment:
        """The experiment of the best trial, with a seed that the search did not use."""
        return self.tuning.cell(self.trial, self.tuning.fresh()[0]).experiment()

    def run(
        self,
        seeds: Iterable[int] | None = None,
        *,
        out: Path | None = None,
        progress: bool = False,
        callbacks: Sequence[Callback] = (),
    ) -> SweepResult:
        """Run the best of every rule with seeds that the search did not use.

        Args:
            seeds: The seeds; by default the first five that the search did not use.
            out: Folder; by default `comparison` in that of the search.
            progress: Show the progress.
            callbacks: Receive the evaluations and the end of each run.

        Raises:
            ConfigError: The search used one of the seeds.
        """
        plan = self.tuning.comparison(self.trials, list(seeds) if seeds is not None else [])
        folder = pathlib.Path(out) if out is not None else self.folder / "comparison"
        return result_of(plan, folder, execute(plan, folder, progress, self.data_dir, callbacks), self.data_dir)

    @functools.cached_property
    def table(self) -> Any:
        """The trials as a data frame of pandas, with a column per parameter."""
        return frame(self.rows, "result.rows, a list of dicts")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The trials as dicts with an entry per parameter."""
        return outcome.rows(self.tuning, self.trials)

    def plot(self) -> InlineFigure:
        """Draw the metric over each parameter; a notebook shows the figure."""
        return outcome.figure(self.tuning, self.trials)

    def __repr__(self) -> str:
        best = f"; best: {_words(self.params)}" if self.best else ""
        return f"<TuneResult {self.folder}: {len(self.trials)} trials{best}>"

    def _repr_html_(self) -> str:
        rows = self.rows
        head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
        cells = [[f"<td>{html.escape(outcome.shown(value))}</td>" for value in row.values()] for row in rows]
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        return f"<p>{html.escape(repr(self)[1:-1])}</p><table><tr>{head}</tr>{body}</table>"


def tune(
    *,
    space: Mapping[str, Any],
    out: Path,
    seeds: Iterable[int] = (0,),
    progress: bool = False,
    data_dir: Path | None = None,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> TuneResult:
    """Search for hyperparameters; trials with the same model and data are trained together.

    A list among the settings is an axis, as in `ob.sweep`: `algorithm=[ob.FedBuff(), ob.CA2FL()]`. Every combination
    is a rule, and all rules get the same number of trials; a rule that does not have a key is searched without it.

    The same call again returns what is finished, resumes what is not, and with more trials adds what is new.

    Args:
        space: What each key may be: `{"algorithm.eta": [0.3, 1.0], "client.lr": ob.log_uniform(1e-3, 1)}`.
        out: Folder of the search.
        seeds: Seeds with which each trial is run. A comparison needs others.
        progress: Show the progress, in a terminal or a notebook.
        data_dir: Where data sets are stored.
        callbacks: Receive the evaluations and the end of each run.
        settings: The arguments of `ob.run`, of which `rounds`, `virtual_seconds` and `budget` limit each trial, and
            those of the search: method ("random", "grid", "asha" or "optuna"), trials, metric, sampler_seed, rungs,
            reduction.

    Returns:
        The trials and the best of them; `run` compares the best of all rules.

    Raises:
        ConfigError: A setting is not valid.
        OffbeatError: Optuna is asked for, but not installed.
        RunFolderError: The folder contains other experiments, or cannot be written.
        KeyboardInterrupt: The search was interrupted; the same call resumes it.
    """
    if "seed" in settings:
        raise ConfigError("give the seeds of the runs as seeds=[0], and that of the search as sampler_seed", key="seed")
    chosen = {name: settings.pop(name) for name in SEARCH if name in settings}
    search = Search(**chosen, seeds=tuple(seeds))
    tuning = Tuning(list(cells_of(settings, search.seeds[:1])), space_of(space), search)
    folder = pathlib.Path(out)
    trials = tuning.run(lambda plan: execute(plan, folder, progress, data_dir, callbacks))
    outcome.write(tuning, trials, folder)
    return TuneResult(folder, tuning, trials, data_dir)


def _words(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {outcome.shown(value)}" for name, value in params.items())
