"""Drive runs to their end: one, or several whose jobs are trained together."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

from offbeat.errors import DivergenceError
from offbeat.executors import Executor, arithmetic, threads
from offbeat.executors.base import Task, TrainingOutcome
from offbeat.messages import Job
from offbeat.runs.result import RunResult
from offbeat.runs.run import Run


def alone(run: Run) -> RunResult:
    """Drive one run to its end, or until it is interrupted.

    Raises:
        DivergenceError: The run diverged.
    """
    outcome = together([run])[0]
    if isinstance(outcome, DivergenceError):
        raise outcome
    return outcome


def together(runs: Sequence[Run]) -> list[RunResult | DivergenceError]:
    """Drive several runs at once and train the jobs of all of them in one stack.

    The runs share their model, data and executor. Each has the results that it would have alone, up to the rounding of
    a larger stack. Any error other than a divergence stops all runs; those without an error write a checkpoint first.

    Returns:
        The result of each run, or its error if it diverged.
    """
    with contextlib.ExitStack() as ending:
        for run in runs:
            ending.callback(run.abandon)  # if anything else ends the program, such as a second Ctrl-C
        return _together(runs)


def _together(runs: Sequence[Run]) -> list[RunResult | DivergenceError]:
    executor = runs[0].assembly.executor
    ended: dict[int, RunResult | DivergenceError] = {}
    waiting: dict[int, list[Job]] = {}
    failures: list[Exception] = []
    routines = [run.advance(len(runs)) for run in runs]

    def proceed(place: int, step: Callable[[], list[Job]]) -> None:
        try:
            waiting[place] = step()
        except StopIteration as end:
            ended[place] = end.value
        except DivergenceError as error:
            ended[place] = error
        except Exception as error:  # a user's model or loss may raise anything
            failures.append(error)
            for run in runs:  # the others write a checkpoint and stop
                run.interrupted.set()

    with threads(executor.context), arithmetic(executor.context), contextlib.closing(executor):
        for place, routine in enumerate(routines):
            proceed(place, functools.partial(next, routine))
        while waiting:
            asked, waiting = waiting, {}
            tasks = [(runs[place].assembly.runtime, job) for place, jobs in asked.items() for job in jobs]
            try:
                trained = iter(_in_bulk(executor, tasks))
            except Exception as error:  # likewise
                for place in asked:
                    proceed(place, functools.partial(routines[place].throw, error))
                break
            for place, jobs in asked.items():
                proceed(place, functools.partial(routines[place].send, [next(trained) for _ in jobs]))
    if failures:
        raise failures[0]
    return [ended[place] for place in range(len(runs))]


def _in_bulk(executor: Executor, tasks: Sequence[Task]) -> list[TrainingOutcome]:
    parts = (tasks[first : first + executor.bulk] for first in range(0, len(tasks), executor.bulk))
    return [trained for part in parts for trained in executor.train_all(part)]
