# %% [markdown]
# # Clients that are seldom there
#
# Thirty clients have one digit each. Those with a 9 are always awake, those with a 0 one second in ten: who is there
# depends on what data they have, as with phones that charge at night in one time zone. A server that averages whoever
# happens to be awake learns what the frequent ones know.

# %%
import pathlib

import torch

import offbeat as ob
from offbeat.cache import Quantized
from offbeat.data import Digits
from offbeat.environment import ByLabel, Constant
from offbeat.models import LR

# %% [markdown]
# Three answers. FedAvg takes the mean of those who are there. FedAvg-IS weighs them by one over their probability of
# being there, which it has to know. MIFA keeps the latest update of every client and takes the mean of them all; that
# costs a vector a client, or an eighth of one when it is kept in four bits a number.

# %%
RULES = {
    "FedAvg": ob.FedAvg(),
    "FedAvg-IS": ob.algorithms.FedAvgIS(),
    "MIFA": ob.MIFA(wait_for_all=False),
    "MIFA, 4 bit": ob.MIFA(wait_for_all=False, cache=Quantized(bits=4)),
}


def run(algorithm):
    return ob.run(
        data=Digits(),
        clients=30,
        partition=ob.partitions.LabelShards(classes=1),
        model=LR(),
        algorithm=algorithm,
        scheduler=ob.schedulers.Available(),  # all that are awake train, then a step
        client=ob.SGD(lr=0.1, steps=5, batch_size=16),
        environment=ob.Environment(delay=Constant(value=0.5), availability=ByLabel(least=0.1)),
        rounds=120,
        evaluation=10,
    )


# %% [markdown]
# `result.x` is the model as one vector, in the order of the module's parameters. With it we can ask how many of each
# digit are recognised.

# %%
dataset = Digits().load(pathlib.Path())


def recognised(result):
    module = LR().build(dataset.shape, dataset.classes)
    torch.nn.utils.vector_to_parameters(result.x, module.parameters())
    with torch.no_grad():
        right = module(dataset.prepare(dataset.test_x)).argmax(dim=1) == dataset.test_y
    return [right[dataset.test_y == digit].float().mean().item() for digit in range(10)]


print(f"{'recognised, %':14}" + "".join(f"{digit:5}" for digit in range(10)) + "    all")
for name, algorithm in RULES.items():
    result = run(algorithm)
    each = recognised(result)
    print(f"{name:14}" + "".join(f"{100 * share:5.0f}" for share in each) + f"{100 * result.accuracy:7.1f}")

# %% [markdown]
# After 120 rounds FedAvg recognises none of the zeros and ones, whose owners are the rarest. Importance sampling makes
# up for most of that, noisily, since an update that comes one time in ten counts ten times. MIFA does best, and four
# bits a number cost it nothing here.
