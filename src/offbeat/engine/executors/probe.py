"""What a model does that an executor must know."""

from __future__ import annotations

import copy

import torch
from torch.utils.flop_counter import FlopCounterMode

from offbeat.engine.work import Work
from offbeat.messages import Job

# Calculations of a forward pass, times steps, from which on compiling pays.  On an H200 it makes 120 µs of a CNN's 180,
# and takes 10 to 30 seconds: 300,000 steps of 1.6·10⁹.
WORTH_COMPILING = 5e14


def worth_compiling(work: Work, steps: int) -> bool:
    """Whether so many local steps are worth the time that compiling the model takes; the same on every machine."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        work.module(work.inputs(torch.from_numpy(work.plans([Job(0, 0, 0, work.x, 1, 0)])[0][0, 0]).to(work.device)))
    return float(counter.get_total_flops()) * steps > WORTH_COMPILING


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
