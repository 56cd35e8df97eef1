"""The evaluations of a run: started, read when their figures are there, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from offbeat.client.evaluation import ClientModels, Score, TestResult
from offbeat.runs.assembly import Assembly
from offbeat.runs.fairness import client_rows, columns, fairness, label_rows
from offbeat.runs.summary import reaches

Line = dict[str, Any]


class Evaluations:
    """The evaluations of one run.

    Args:
        assembly: The experiment.
        record: Receives each evaluation when its figures are known.
    """

    def __init__(self, assembly: Assembly, record: Callable[[Line, TestResult], None]) -> None:
        self.assembly, self._record = assembly, record
        self.lines: list[Line] = []
        self.client_rows: list[Line] = []
        self.label_rows: list[Line] = []
        self._settings, self._task = assembly.experiment.evaluation, assembly.experiment.task
        self._target = self._settings.target_of(self._task)
        self._pending: tuple[Score, Line] | None = None  # an evaluation whose figures are not read yet

    def start(self, x: Tensor, buffers: Tensor | None, line: Line, models: ClientModels | None = None) -> None:
        """Start an evaluation; on a GPU its figures are read before the next one, or when they are needed.

        Args:
            x: The model.
            buffers: Its running statistics, if it has any.
            line: The other figures of the evaluation's row.
            models: The models of the clients, where each is tested with its own.
        """
        self.settle()
        score = self.assembly.evaluate(x, buffers, models)
        if (gradients := self.assembly.gradients) is not None:
            line = line | gradients(x, buffers, self.assembly.evaluate.stopping)
        names = [info.name for info in self._task.metric_infos()]
        version, seconds = line["version"], line["virtual_seconds"]
        first = {"version": version, "virtual_seconds": seconds, **dict.fromkeys(names, 0.0)}  # their place in the row
        self._pending = score, first | line
        if self.assembly.experiment.device == "cpu" or self._settings.stop_at_target or self._settings.patience:
            self.settle()

    def settle(self) -> None:
        """Record the evaluation that was started last."""
        if self._pending is None:
            return
        (score, line), self._pending = self._pending, None
        result = score()
        line |= result.metrics
        if result.per_client:
            line |= fairness(result.per_client, self._task.main)
            self.client_rows += client_rows(line, result.per_client, self.assembly.context.data.sizes)
        if result.per_label:
            self.label_rows += label_rows(line, result.per_label)
        self.lines.append(line)
        self._record(line, result)

    def restore(self, lines: list[Line], per_client: list[Line], per_label: list[Line]) -> None:
        """Continue after stored evaluations.

        Args:
            lines: The rows of `metrics.jsonl`.
            per_client: The rows of `client_metrics.jsonl`.
            per_label: The rows of `label_metrics.jsonl`.
        """
        self.lines, sizes = lines, self.assembly.context.data.sizes if per_client else None
        for line in per_client:
            assert sizes is not None
            self.client_rows += client_rows(line, columns(line), sizes)
        for line in per_label:
            self.label_rows += label_rows(line, columns(line))

    def stop_reason(self) -> str | None:
        """Return why the run should end: at the target or without patience; it depends on the recorded rows only."""
        if not self.lines:
            return None
        if self._settings.stop_at_target and self._target is not None and reaches(self.lines[-1], self._target):
            return "the target was reached"
        main, patience = self._task.main, self._settings.patience
        values = [line[main.name] for line in self.lines]
        best = main.best(values)
        since = len(values) - 1 - (values.index(best) if best in values else 0)
        if patience is not None and since >= patience:
            return f"{main.name} did not improve in {patience} evaluations"
        return None
