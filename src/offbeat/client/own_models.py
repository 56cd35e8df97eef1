"""Forward passes of many clients' models, each on its client's own test examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap

from offbeat.client.context import TrainingContext
from offbeat.trees import Tree, call, map_tensors

STACK_BYTES = 1 << 28  # largest total size of the parameters in one stack
Indices = NDArray[np.int64]
Examples = Callable[[Tensor], tuple[Tree, Tree]]


class StackedForward:
    """Passes the test examples of several clients through their models at once, where the model allows it.

    On a CPU, models with convolutions run one after the other: stacked convolutions are slower there.

    Args:
        context: Model, data and device.
        module: A copy of the model in evaluation mode.
    """

    def __init__(self, context: TrainingContext, module: nn.Module) -> None:
        self.context, self.module = context, module
        convolutions = nn.Conv1d, nn.Conv2d, nn.Conv3d
        convolves = any(isinstance(layer, convolutions) for layer in module.modules())

        def forward(parameters: dict[str, Tensor], inputs: Tree) -> Any:
            return call(module, inputs, parameters)

        self._forward = vmap(forward)
        in_memory = context.data.dataset.reader is None
        self._stackable = in_memory and not (context.device.type == "cpu" and convolves) and self._works()

    @torch.no_grad()
    def _works(self) -> bool:
        """Return whether the model can be stacked."""
        context = self.context
        y, b = context.layout.read(self.module), context.buffers.read(self.module)
        inputs = map_tensors(lambda t: t.view(2, 2, *t.shape[1:]), context.first_inputs(4))
        try:
            self._forward(self._parameters(torch.stack([y, y]), torch.stack([b, b])), inputs)
        except Exception:  # the model may do anything
            return False
        return True

    def stacks(self, owners: Indices, batch_size: int) -> Iterator[tuple[list[int], list[Indices]]]:
        """Yield clients to test together and their test examples; those with the most examples come first.

        Args:
            owners: The client of each test example, or -1.
            batch_size: Most examples in a forward pass.
        """
        order = np.argsort(owners, kind="stable")
        clients, first = np.unique(owners[order], return_index=True)
        parts = dict(zip(clients.tolist(), np.split(order, first[1:]), strict=True))
        parts.pop(-1, None)
        queue = sorted(parts, key=lambda client: -len(parts[client]))
        most = max(1, STACK_BYTES // (4 * max(1, self.context.layout.dim)))
        while queue:
            rows = max(1, min(most, batch_size // len(parts[queue[0]])))
            together, queue = queue[:rows], queue[rows:]
            yield together, [parts[client] for client in together]

    def batches(self, own: Sequence[Indices], batch_size: int) -> Iterator[tuple[slice, list[Indices]]]:
        """Yield the rows of a stack that pass through the model together, with their examples."""
        if self._stackable and len(own) > 1:
            yield slice(None), list(own)
            return
        for row, positions in enumerate(own):
            for first in range(0, len(positions), batch_size):
                yield slice(row, row + 1), [positions[first : first + batch_size]]

    def __call__(
        self, y: Tensor, buffers: Tensor | None, positions: Sequence[Indices], examples: Examples
    ) -> tuple[Any, Tensor]:
        """Return the outputs for the examples of all rows, one after the other, and the examples.

        Args:
            y: The models (n, d).
            buffers: Their running statistics (n, b), if they have any.
            positions: The test examples of each row.
            examples: Returns the inputs and labels of test examples.
        """
        device = self.context.device
        index = torch.from_numpy(np.concatenate(positions)).to(device)
        if len(positions) > 1:
            return self._stacked(y, buffers, positions, examples), index
        inputs = self.context.to_memory_format(examples(index)[0])
        return call(self.module, inputs, self._parameters(y[0], None if buffers is None else buffers[0])), index

    def _stacked(self, y: Tensor, buffers: Tensor | None, positions: Sequence[Indices], examples: Examples) -> Any:
        """Return the outputs of all rows; rows are padded with their first example."""
        width = max(map(len, positions))
        index = np.stack([np.resize(own, width) for own in positions])
        valid = np.concatenate([row * width + np.arange(len(own)) for row, own in enumerate(positions)])
        device = self.context.device
        inputs, _ = examples(torch.from_numpy(index.ravel()).to(device))
        parameters = self._parameters(y, buffers)
        outputs = self._forward(parameters, map_tensors(lambda t: t.view(-1, width, *t.shape[1:]), inputs))
        keep = torch.from_numpy(valid).to(device)
        return map_tensors(lambda t: t.flatten(0, 1).index_select(0, keep), outputs)

    def _parameters(self, y: Tensor, buffers: Tensor | None) -> dict[str, Tensor]:
        """Return models as named parameters and buffers."""
        statistics = {} if buffers is None else self.context.buffers.unflatten(buffers)
        return self.context.layout.unflatten(y) | statistics
