# %% [markdown]
# # Personal heads
#
# Forty clients have digits of two kinds each. One model has to tell all ten apart; a client needs to tell its own two.
# In the personal runs a part of the model stays on each client, and only the rest travels.

# %%
from torch import nn

import offbeat as ob
from offbeat.data import Digits
from offbeat.environment import LogNormal


class Net(nn.Module):
    """A body, BatchNorm and a head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 48, bias=False))
        self.norm, self.head = nn.BatchNorm1d(48), nn.Linear(48, 10)

    def forward(self, x):
        """Return the scores of the ten digits."""
        return self.head(self.norm(self.body(x)).relu())


# %% [markdown]
# FedPer keeps the head on the client, FedBN the norms with their statistics. FedRep trains the head before the body.
# The last one shares everything, and takes ten steps on a client's own data before the client is tested.

# %%
PERSONALIZATIONS = {
    "everything shared": ob.Personalization(),
    "FedBN": ob.Personalization(norms=True),
    "FedPer": ob.Personalization(parameters=["head"]),
    "FedRep": ob.Personalization(parameters=["head"], head_steps=5),
    "shared, fine-tuned": ob.Personalization(fine_tune_steps=10),
}


def run(personalization):
    """Run one experiment."""
    return ob.run(
        data=Digits(),
        clients=40,
        partition=ob.partitions.LabelShards(classes=2),
        model=Net,
        personalization=personalization,
        algorithm=ob.FedBuff(),
        scheduler=ob.Buffered(concurrency=20, buffer=10),
        client=ob.SGD(lr=0.1, steps=10, batch_size=16),
        environment=ob.Environment(delay=LogNormal()),
        rounds=40,
        evaluation=ob.Evaluation(every=20, per_client=True),
    )


# %% [markdown]
# Each client is tested on test digits of its own two kinds, with its own model. `result.client_evaluations` has one
# row per client and evaluation; the rows of `result.evaluations` summarize them.

# %%
print(f"{'accuracy, %':20} {'all':>5} {'worst tenth':>12} {'clients at 100':>15} {'MB sent':>8}")
for name, personalization in PERSONALIZATIONS.items():
    result = run(personalization)
    last = result.evaluations[-1]
    perfect = sum(row["accuracy"] == 1 for row in result.client_evaluations if row["version"] == last["version"])
    print(
        f"{name:20} {100 * last['accuracy']:5.1f} {100 * last['accuracy_worst_decile']:12.1f} "
        f"{perfect:15} {last['bytes_up'] / 1e6:8.2f}"
    )

# %% [markdown]
# A head that tells two digits apart is easier to learn than one for ten. FedBN does not help here: it is meant for
# clients whose inputs differ, as with other cameras, and not for clients whose labels do.
