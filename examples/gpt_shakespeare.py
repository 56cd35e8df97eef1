# %% [markdown]
# # A tiny GPT on Shakespeare
#
# Each role of the plays is a client: it trains a GPT on its own lines, to predict the next character at every position.
# The metric is perplexity on held-out lines of all roles: the number of characters among which the model hesitates, 80
# before training. Where the text cannot be found or downloaded, roles with invented lines take its place.

# %%
import sys

import numpy as np
import torch

import offbeat as ob
from offbeat.data import data_dir
from offbeat.data.text import CHARACTERS, encode, windows

LENGTH = 32
NOUNS = ["king", "night", "crown", "sword", "heart", "ghost", "storm", "rose", "grave", "throne"]
VERBS = ["loves", "fears", "slays", "haunts", "mourns", "follows", "crowns", "betrays"]


def invented() -> ob.Dataset:
    """Return twenty roles, each with some favorite nouns."""
    rng, lines = np.random.default_rng(0), []
    for _ in range(20):
        nouns = rng.choice(NOUNS, size=3, replace=False)
        words = (f"The {rng.choice(nouns)} {rng.choice(VERBS)} the {rng.choice(nouns)}." for _ in range(80))
        lines.append(windows(encode(" ".join(words)), LENGTH, LENGTH))
    x, y = (np.concatenate(parts) for parts in zip(*lines, strict=True))
    owners = np.repeat(np.arange(20), [len(windows) for windows, _ in lines])
    test = np.arange(len(x)) % 5 == 4
    return ob.from_arrays(x[~test], y[~test], x[test], y[test], vocabulary=len(CHARACTERS), owners=owners[~test])


# %% [markdown]
# ## Data
#
# With `targets="all"` there is a label at each position, and with the stride the windows do not overlap. The text is
# read from `shakespeare/input.txt` in the folder `OFFBEAT_DATA`, if it is there.

# %%
source = ob.datasets.Shakespeare(length=LENGTH, stride=LENGTH, targets="all", min_examples=40)
try:
    data: ob.Dataset = source.load(data_dir())
except ob.DataError as error:
    print(f"INVENTED LINES instead of Shakespeare: {error}", file=sys.stderr)
    data = invented()

# %% [markdown]
# ## Training
#
# The copies of all clients that train at the same time run as one stack, also the attention.

# %%
result = ob.run(
    data=data,
    partition=ob.partitions.Natural(),
    model=ob.models.GPT(width=48, depth=2, heads=4),
    task="language-modeling",
    algorithm=ob.FedBuff(),
    client=ob.AdamW(lr=3e-3, steps=5, batch_size=8),
    scheduler=ob.Buffered(concurrency=10, buffer=5),
    evaluation=ob.Evaluation(every=20, examples=500),
    rounds=80,
    executor="vectorized",
)
for row in result.evaluations:
    print(f"version {row['version']:3}  perplexity {row['perplexity']:6.2f}  accuracy {row['accuracy']:6.1%}")

# %% [markdown]
# ## A sample
#
# `result.x` is the trained model as one vector.

# %%
module = ob.models.GPT(width=48, depth=2, heads=4).build((LENGTH,), data.outputs, data.vocabulary)
torch.nn.utils.vector_to_parameters(result.x, module.parameters())
text = torch.from_numpy(encode("The ").astype(np.int64))
generator = torch.Generator().manual_seed(0)
with torch.no_grad():
    for _ in range(60):
        scores = module(text[None, -LENGTH:])[0, -1]
        text = torch.cat([text, torch.multinomial((2 * scores).softmax(dim=0), 1, generator=generator)])
print("sample:", "".join(CHARACTERS[i] for i in text.tolist()))
