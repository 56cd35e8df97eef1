# %% [markdown]
# # A regression, measured in mean absolute error
#
# Fifteen clinics predict how diabetes progresses within a year: a score from 25 to 346, from ten measurements per
# patient. Each clinic has patients of one age group. The loss is a Huber loss, and the metric is the mean absolute
# error in points of the score, for which lower is better.

# %%
import numpy as np
from sklearn.datasets import load_diabetes
from torch import nn
from torch.nn import functional

import offbeat as ob

x, y = load_diabetes(return_X_y=True)
x, y = x / x.std(axis=0), (y - y.mean()) / y.std()
spread = load_diabetes().target.std()
order = np.random.default_rng(0).permutation(len(x))
train, test = order[:342], order[342:]
by_age = np.array_split(np.argsort(x[train, 0], kind="stable"), 15)

# %% [markdown]
# A task is a loss and metrics, as functions of the model's outputs and the labels with one value per example. The name
# "mae" tells that lower is better; `Metric` adds the unit.


# %%
def huber(outputs, labels):
    """Return one loss per example."""
    return functional.huber_loss(outputs.squeeze(-1), labels, reduction="none")


def error(outputs, labels):
    """Return the absolute error of each example, in points."""
    return spread * (outputs.squeeze(-1) - labels).abs()


task = ob.Task(loss=huber, metrics={"mae": ob.Metric(error, unit="points")})

# %% [markdown]
# With `per_client`, the test patients are divided among the clinics, and the metrics are also computed for each.

# %%
print(f"{'':10} {'MAE':>5} {'best':>5} {'worst tenth of the clinics':>27} {'s to 46 points':>15}")
for name, algorithm in {"FedBuff": ob.FedBuff(), "CA²FL": ob.CA2FL()}.items():
    result = ob.run(
        data=ob.from_arrays(x[train], y[train], x[test], y[test]),
        partition=by_age,
        model=lambda: nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1)),
        task=task,
        algorithm=algorithm,
        client=ob.AdamW(lr=0.005, epochs=2, batch_size=8, clip_norm=1.0),
        scheduler=ob.Buffered(concurrency=8, buffer=4),
        evaluation=ob.Evaluation(every=5, target={"mae": 46.0}, per_client=True),
        rounds=100,
        executor="vectorized",
    )
    last, summary = result.evaluations[-1], result.summary
    worst, seconds = last["mae_worst_decile"], summary["target_seconds"]
    print(f"{name:10} {last['mae']:5.1f} {summary['best_mae']:5.1f} {worst:27.1f} {seconds:15.0f}")

# %% [markdown]
# `result.client_evaluations` has a row per clinic and evaluation, such as
# `{"version": 100, "client": 3, "examples": 23, "mae": 41.2, …}`.
