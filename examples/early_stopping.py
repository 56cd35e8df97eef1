# %% [markdown]
# # Ending a run early
#
# A run ends after its last round. It may also end at a target, when a metric no longer improves, or when a callback
# says so. In all three cases the run counts as finished, with its model and summary.

# %%
import numpy as np
from torch import nn

import offbeat as ob
from offbeat.data import Digits

SETTINGS = {
    "data": Digits(),
    "clients": 40,
    "partition": ob.partitions.Dirichlet(alpha=0.3),
    "model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    "algorithm": ob.CA2FL(),
    "client": ob.SGD(lr=0.1, epochs=1, batch_size=16),
    "scheduler": ob.Buffered(concurrency=20, buffer=10),
    "rounds": 2000,
    "executor": "vectorized",
}


def show(name, result):
    """Print how a run ended."""
    print(f"{name:10} round {result.summary['rounds']:4}  {result.accuracy:.1%}  {result.summary['stopped']}")


# %% [markdown]
# **A target.** A number is a value of the main metric; `{"loss": 0.3}` names another one.

# %%
show("target", ob.run(evaluation=ob.Evaluation(every=5, target=0.9, stop_at_target=True), **SETTINGS))

# %% [markdown]
# **Patience.** The run ends when the main metric was not better than its best value in that many evaluations.

# %%
show("patience", ob.run(evaluation=ob.Evaluation(every=5, patience=10), **SETTINGS))

# %% [markdown]
# **A callback.** It sees every evaluation, can ask for the model, and decides for itself: here the run ends when the
# weights have hardly moved since the last evaluation.


# %%
class Settled(ob.Callback):
    """Stops a run whose model no longer moves."""

    def __init__(self, tolerance):
        self.tolerance, self.before = tolerance, None

    def on_evaluation(self, run, line):
        weights = np.concatenate([p.detach().numpy().ravel() for p in run.model().parameters()])
        if self.before is not None and np.linalg.norm(weights - self.before) < self.tolerance:
            run.stop()
        self.before = weights


show("callback", ob.run(evaluation=ob.Evaluation(every=10), callbacks=[Settled(tolerance=0.3)], **SETTINGS))
