"""Callbacks that follow runs, among them trackers for TensorBoard, MLflow and Weights & Biases."""

from offbeat.runs.callbacks.base import Callback, CallbackList, RunInfo, RunOutcome
from offbeat.runs.callbacks.mlflow import MLflow
from offbeat.runs.callbacks.tensorboard import TensorBoard
from offbeat.runs.callbacks.tracker import Tracker
from offbeat.runs.callbacks.wandb import WandB

__all__ = ["TRACKERS", "Callback", "CallbackList", "MLflow", "RunInfo", "RunOutcome", "TensorBoard", "Tracker", "WandB"]

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
