# %% [markdown]
# # Several labels per example, measured in F1
#
# Forty clients share images of digits. Each image has four labels at once: is the digit even, prime, round (drawn with
# a loop), or above 4? The task `multilabel` trains with binary cross-entropy. Its main metric is F1 over all labels.

# %%
import numpy as np
from sklearn.datasets import load_digits

import offbeat as ob

LABELS = {"even": (0, 2, 4, 6, 8), "prime": (2, 3, 5, 7), "round": (0, 6, 8, 9), "large": (5, 6, 7, 8, 9)}

images, digits = load_digits(return_X_y=True)
images = images.reshape(-1, 1, 8, 8) / 16
labels = np.stack([np.isin(digits, members) for members in LABELS.values()], axis=1)  # (1797, 4), true or false
data = ob.from_arrays(images[:1400], labels[:1400], images[1400:], labels[1400:])
by_digit = np.array_split(np.argsort(digits[:1400], kind="stable"), 40)  # one or two digits per client

# %% [markdown]
# Metrics of your own are added to a task by name. F1 is not a mean over examples, so a metric per label is an object
# with `reset`, `update` and `compute`, such as those of torchmetrics.


# %%
class LabelF1(ob.tasks.F1):
    """F1 of one label."""

    def __init__(self, label):
        super().__init__(lambda outputs: outputs)
        self.label = label

    def count(self, outputs, labels):
        return super().count(outputs[:, [self.label]], labels[:, [self.label]])


built_in = ob.tasks.MultiLabel()
per_label = {f"f1_{name}": LabelF1(number) for number, name in enumerate(LABELS)}
task = ob.Task(loss=built_in.loss, metrics={"f1": built_in.metrics["f1"], **per_label})

# %%
print(f"{'round':>5} {'F1':>6}   " + " ".join(f"{name:>6}" for name in LABELS))
result = ob.run(
    data=data,
    partition=by_digit,
    model=ob.models.MLP(hidden=(64,)),
    task=task,
    algorithm=ob.CA2FL(),
    client=ob.SGD(lr=0.1, momentum=0.5, epochs=1, batch_size=16),
    scheduler=ob.Buffered(concurrency=20, buffer=10),
    evaluation=100,
    rounds=300,
    executor="vectorized",
)
for line in result.evaluations:
    print(f"{line['version']:5} {line['f1']:6.1%}   " + " ".join(f"{line[f'f1_{name}']:6.1%}" for name in LABELS))
