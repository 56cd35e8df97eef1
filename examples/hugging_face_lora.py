# %% [markdown]
# # A Hugging Face classifier with LoRA
#
# A DistilBERT (its configuration only, with random weights, so that nothing is downloaded) classifies padded sequences
# of tokens. Its inputs are a dict, as a tokenizer returns it. First, clients train all weights. Then the labels change,
# and `ob.lora` freezes the trained model: clients train and transmit low-rank adapters next to its attention layers,
# and the classifier on top. All clients of a stack share the frozen weights.

# %%
import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import offbeat as ob

WORDS, LENGTH, TOPICS, CLIENTS = 200, 24, 4, 20

# %% [markdown]
# ## Data
#
# A text has between 8 and 24 words, a third of them from its topic. Each client has texts of two topics.

# %%
rng = np.random.default_rng(0)
topics = rng.integers(TOPICS, size=1200)
lengths = rng.integers(8, LENGTH + 1, size=(1200, 1))
words = rng.integers(1, WORDS, size=(1200, LENGTH))
special = 1 + topics[:, None] * 10 + rng.integers(10, size=(1200, LENGTH))
words = np.where(rng.random((1200, LENGTH)) < 1 / 3, special, words)
mask = (np.arange(LENGTH) < lengths).astype(np.int64)
inputs = {"input_ids": words * mask, "attention_mask": mask}
train, test = ({name: x[part] for name, x in inputs.items()} for part in (slice(1000), slice(1000, None)))
settings = {
    "partition": ob.partitions.LabelShards(classes=2),
    "clients": CLIENTS,
    "algorithm": ob.FedBuff(),
    "client": ob.AdamW(lr=2e-3, epochs=1, batch_size=10),
    "scheduler": ob.Buffered(concurrency=10, buffer=5),
    "executor": "vectorized",
}


def make_model() -> torch.nn.Module:
    return DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=WORDS, max_position_embeddings=LENGTH, dim=64, hidden_dim=128, n_layers=2, n_heads=4,
            num_labels=TOPICS, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
        )
    )  # fmt: skip


def show(name: str, result: ob.Result) -> None:
    before, after = result.evaluations[0]["accuracy"], result.accuracy
    sizes = f"{result.summary['parameters']:7,} parameters, {result.summary['bytes_up'] / 1e6:5.1f} MB uploaded"
    print(f"{name:12} accuracy {before:6.1%} → {after:6.1%}, {sizes}")


# %% [markdown]
# ## All weights

# %%
data = ob.from_arrays(train, topics[:1000], test, topics[1000:], classes=TOPICS)
result = ob.run(data=data, model=make_model, rounds=30, **settings)
show("all weights", result)

# %% [markdown]
# ## Adapters for other labels
#
# `targets` are the last parts of the names of the layers that get adapters; `train` names layers that are trained as
# they are. A model that `peft.get_peft_model` returns can be passed instead.

# %%
base = make_model()
torch.nn.utils.vector_to_parameters(result.x, base.parameters())
adapted = ob.lora(base, rank=4, targets=["q_lin", "v_lin"], train=["classifier"])
other = (topics + 1) % TOPICS
data = ob.from_arrays(train, other[:1000], test, other[1000:], classes=TOPICS)
client = ob.AdamW(lr=5e-3, epochs=1, batch_size=10)
show("LoRA, rank 4", ob.run(data=data, model=adapted, rounds=30, **settings | {"client": client}))
