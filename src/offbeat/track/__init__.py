"""Callbacks: who is told how a run goes.  TensorBoard, MLflow and Weights & Biases are such."""

from offbeat.track.base import Audience, Callback, Ending, RunInfo
from offbeat.track.mlflow import MLflow
from offbeat.track.tensorboard import TensorBoard
from offbeat.track.tracker import Tracker
from offbeat.track.wandb import WandB

__all__ = ["TRACKERS", "Audience", "Callback", "Ending", "MLflow", "RunInfo", "TensorBoard", "Tracker", "WandB"]

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
