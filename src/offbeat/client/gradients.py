"""Gradients of the clients' objectives at x: training loss, ‖∇f(x)‖², and the heterogeneity of the clients.

    f_i      mean loss of client i on its training data, without regularization and augmentation
    f        (1/n) Σ_i f_i over n clients
    σ_g²(x)  (1/N) Σ_i ‖∇f_i(x) − ∇f(x)‖²; from n of N clients it is estimated without bias

The model is in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from offbeat.client.context import TrainingContext
from offbeat.client.evaluation import EvaluationInterrupted
from offbeat.random import stream
from offbeat.tasks.base import in_dtype
from offbeat.trees import Tree, call, size
from offbeat.vectors import copied

COLUMNS = ("train_loss", "gradient_square", "heterogeneity")


class ClientGradients:
    """Computes the gradients of clients at x, each over the client's whole training data, in evaluation mode.

    Args:
        context: Model, data and task.
        clients: Number of clients, a fixed random sample; all if there are no more.
        batch_size: Examples per forward pass.
    """

    def __init__(self, context: TrainingContext, clients: int, batch_size: int) -> None:
        self.context, self.batch_size = context, batch_size
        everyone = context.data.clients
        self.clients = np.sort(stream(0, "gradients").choice(everyone, min(clients, everyone), replace=False)).tolist()
        self.module = copied(context.module).eval()
        for part in self.module.modules():
            if isinstance(part, torch.nn.RNNBase):  # CUDA differentiates these in training mode only
                part.train()
                part.dropout = 0.0
        named = dict(self.module.named_parameters())
        self.parameters = [named[name] for name in context.split.shared.names]

    def __call__(
        self, x: Tensor, buffers: Tensor | None = None, stopping: Callable[[], bool] = lambda: False
    ) -> dict[str, float]:
        """Return the figures for an evaluation's row.

        Args:
            x: The model's parameters.
            buffers: Its running statistics, if it has any.
            stopping: Asks whether to stop between two clients.

        Raises:
            EvaluationInterrupted: It was asked to stop.
        """
        self.context.split.shared.write(self.module, x)
        if buffers is not None:
            self.context.split.shared_buffers.write(self.module, buffers)
        mean = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        squares, total, n = 0.0, 0.0, len(self.clients)
        for count, client in enumerate(self.clients, start=1):  # Welford's algorithm
            if stopping():
                raise EvaluationInterrupted
            loss, gradient = self._of(client)
            before = gradient - mean
            mean += before / count
            squares += float(before @ (gradient - mean))
            total += loss
        everyone = self.context.data.clients
        spread = squares / n if n == everyone else squares / max(n - 1, 1) * (everyone - 1) / everyone
        return dict(zip(COLUMNS, (total / n, float(mean @ mean), spread), strict=True))

    def _of(self, client: int) -> tuple[float, Tensor]:
        """Return f_i(x) and ∇f_i(x)."""
        index = torch.from_numpy(np.ascontiguousarray(self.context.data.indices(client))).to(self.context.device)
        loss, gradient = 0.0, torch.zeros(self.context.split.shared.dim, dtype=torch.float64, device=index.device)
        for part in torch.split(index, self.batch_size):
            inputs, labels = self._examples(part)
            outputs = in_dtype(call(self.module, self.context.to_memory_format(inputs)), torch.float32)
            mean = self.context.task.losses(outputs, labels, size(labels)).sum() / len(index)
            gradients = torch.autograd.grad(mean, self.parameters, allow_unused=True, materialize_grads=True)
            gradient += torch.cat([each.flatten() for each in gradients])
            loss += float(mean.detach())
        return loss, gradient

    def _examples(self, index: Tensor) -> tuple[Tree, Tree]:
        context = self.context
        if context.data.dataset.reader is not None:
            return context.read(index, 0)
        return context.inputs_at(index), context.labels_at(index)
