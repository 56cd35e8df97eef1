"""Tasks: what is learned, as a loss and metrics."""

from offbeat.tasks.base import Task, scores
from offbeat.tasks.builtin import TASKS, Classification, LanguageModeling, MultiLabel, Regression, Segmentation
from offbeat.tasks.metrics import F1, MeanIoU, Metric

__all__ = [
    "F1",
    "TASKS",
    "Classification",
    "LanguageModeling",
    "MeanIoU",
    "Metric",
    "MultiLabel",
    "Regression",
    "Segmentation",
    "Task",
    "scores",
]
