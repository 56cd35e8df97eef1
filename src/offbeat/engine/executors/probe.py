"""What a model does that an executor must know."""

from __future__ import annotations

import copy

import torch

from offbeat.engine.work import Work


@torch.no_grad()
def mixes_examples(work: Work) -> bool:
    """Whether the output for one example depends on what else is in the batch (batch statistics do that)."""
    module = copy.deepcopy(work.module).train()
    one = work.data.dataset.prepare(work.x[torch.zeros(3, dtype=torch.int64, device=work.device)])
    changed = one[1:] + 1 if one.is_floating_point() else (one[1:] == 0).to(one.dtype)  # tokens 0 and 1 always exist
    other = torch.cat([one[:1], changed])
    outputs = []
    with torch.random.fork_rng(devices=[work.device] if work.device.type == "cuda" else []):
        for inputs in (one, other):
            torch.manual_seed(0)  # the same dropout for both
            outputs.append(module(inputs)[0])
    return not torch.allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-4)
