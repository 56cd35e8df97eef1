# %% [markdown]
# # Clients that are rarely available
#
# Thirty clients have one digit each. Clients with a 9 are always available, clients with a 0 one second in ten: the
# availability depends on the data, as with phones that charge at night in one time zone. A server that averages the
# available clients learns mostly what the frequent ones know.

# %%
import pathlib

import torch

import offbeat as ob
from offbeat.cache import Quantized
from offbeat.data import Digits
from offbeat.environment import ByLabel, Constant
from offbeat.models import LR

# %% [markdown]
# FedAvg takes the mean of the available clients. FedAvg-IS weights them by the inverse of their probability of being
# available, which it has to know. MIFA caches the latest update of every client and takes the mean of all; that costs
# one vector per client, or an eighth of one with four bits per number.

# %%
ALGORITHMS = {
    "FedAvg": ob.FedAvg(),
    "FedAvg-IS": ob.algorithms.FedAvgIS(),
    "MIFA": ob.MIFA(wait_for_all=False),
    "MIFA, 4 bit": ob.MIFA(wait_for_all=False, cache=Quantized(bits=4)),
}


def run(algorithm):
    """Run one experiment."""
    return ob.run(
        data=Digits(),
        clients=30,
        partition=ob.partitions.LabelShards(classes=1),
        model=LR(),
        algorithm=algorithm,
        scheduler=ob.schedulers.Available(),  # all available clients train, then the server steps
        client=ob.SGD(lr=0.1, steps=5, batch_size=16),
        environment=ob.Environment(delay=Constant(value=0.5), availability=ByLabel(least=0.1)),
        rounds=120,
        evaluation=10,
    )


# %% [markdown]
# `result.x` is the model as one vector, in the order of the module's parameters. It gives the accuracy on each digit.

# %%
dataset = Digits().load(pathlib.Path())


def accuracy_per_digit(result):
    """Return the test accuracy on each digit."""
    module = LR().build(dataset.shape, dataset.classes)
    torch.nn.utils.vector_to_parameters(result.x, module.parameters())
    with torch.no_grad():
        correct = module(dataset.prepare(dataset.test_x)).argmax(dim=1) == dataset.test_y
    return [correct[dataset.test_y == digit].float().mean().item() for digit in range(10)]


print(f"{'accuracy, %':14}" + "".join(f"{digit:5}" for digit in range(10)) + "    all")
for name, algorithm in ALGORITHMS.items():
    result = run(algorithm)
    digits = accuracy_per_digit(result)
    print(f"{name:14}" + "".join(f"{100 * accuracy:5.0f}" for accuracy in digits) + f"{100 * result.accuracy:7.1f}")

# %% [markdown]
# After 120 rounds FedAvg recognizes none of the zeros and ones, whose clients are available most rarely. Importance
# sampling corrects most of that, but noisily: an update that arrives one time in ten counts ten times. MIFA does
# best, and four bits per number cost it nothing here.
