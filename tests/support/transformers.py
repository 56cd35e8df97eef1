"""Transformers of several origins, with data that suit them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.client.context import TrainingContext
from offbeat.client.rules import ClientRule
from offbeat.client.runtime import ClientRuntime
from offbeat.data import Dataset, PartitionedDataset, from_arrays
from offbeat.messages import Job
from offbeat.models import GPT, LoRA, ViT
from offbeat.random import key
from offbeat.tasks import TASKS

SIZES, CLASSES, WORDS, LENGTH = (3, 10, 6), 4, 11, 7
VIT, TINY_GPT = ViT(width=8, depth=2, heads=2), GPT(width=8, depth=2, heads=2)


def images() -> Dataset:
    rng = np.random.default_rng(0)
    n = sum(SIZES)
    data = from_arrays(rng.standard_normal((n, 3, 8, 8), dtype=np.float32), rng.integers(CLASSES, size=n), classes=4)
    return replace(data, x=data.x.double())


def texts() -> Dataset:
    """Return sequences of tokens with a label per position."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(WORDS, size=(sum(SIZES), LENGTH)) for _ in range(2))
    return from_arrays(x, y, vocabulary=WORDS)


def masked(labels: int | tuple[int, ...] = ()) -> Dataset:
    """Return dicts of padded sequences and their masks with a class, or with labels of a given shape."""
    rng = np.random.default_rng(0)
    n = sum(SIZES)
    mask = (np.arange(LENGTH) < rng.integers(2, LENGTH + 1, size=(n, 1))).astype(np.int64)
    x = {"input_ids": rng.integers(1, WORDS, size=(n, LENGTH)) * mask, "attention_mask": mask}
    if labels == ():
        return from_arrays(x, rng.integers(CLASSES, size=n), classes=CLASSES)
    return from_arrays(x, rng.integers(WORDS, size=(n, LENGTH)))


class OwnParameters(nn.Module):
    """A ViT as users write it: a class token, positions and a scale that belong to the module itself."""

    def __init__(self, repeat: bool = False) -> None:
        super().__init__()
        self.repeat = repeat
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embedding = nn.Parameter(torch.zeros(1, 5, 8))
        self.scale = nn.Parameter(torch.ones(8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        n = len(x)
        first = self.cls_token.repeat(n, 1, 1) if self.repeat else self.cls_token.expand(n, -1, -1)
        tokens = torch.cat([first, tokens], dim=1) + self.pos_embedding
        scores: Tensor = self.head(self.scale * self.encoder(tokens)[:, 0])
        return scores


class Encoder(nn.Module):
    """Encoder layers with a causal mask and a padding mask, and an embedding whose padding is not trained."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embedding = nn.Embedding(WORDS, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first, norm_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens)
        if not self.batch_first:
            return self.head(self.encoder(x.transpose(0, 1)).transpose(0, 1))  # type: ignore[no-any-return]
        padding = (tokens == 0) & (torch.arange(tokens.shape[1]) > 0)
        causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        return self.head(self.encoder(x, mask=causal, src_key_padding_mask=padding))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """All ways to call `nn.MultiheadAttention`: on others, time first, with weights, with a mask per head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(WORDS, 8), nn.Embedding(16, 8)
        self.norm, self.head = nn.RMSNorm(8), nn.Linear(8, WORDS)
        self.across, self.own = nn.MultiheadAttention(8, 2, batch_first=True), nn.MultiheadAttention(8, 2, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        y, weights = self.across(self.norm(x), x, x)
        scores = torch.arange(tokens.shape[1], dtype=x.dtype).expand(2 * len(x), tokens.shape[1], -1) / 9
        z = (x + y).transpose(0, 1)
        z = self.own(z, z, z, need_weights=False, attn_mask=scores)[0].transpose(0, 1)
        outputs: Tensor = self.head(x + z) + weights.sum(dim=2, keepdim=True)
        return outputs


def bits(module: nn.Module) -> nn.Module:
    """Train the biases only."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return module


def hugging_face(kind: str, **more: Any) -> nn.Module:
    """Return a small model of transformers with random weights and without dropout."""
    import transformers

    shape: dict[str, dict[str, Any]] = {
        "Bert": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
                 "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "DistilBert": {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "max_position_embeddings": 16,
                       "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0},
        "GPT2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 1,
                 "pad_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        "Llama": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
                  "intermediate_size": 16, "max_position_embeddings": 16, "pad_token_id": 0},
    }  # fmt: skip
    name = next(name for name in shape if kind.startswith(name))
    config = getattr(transformers, f"{name}Config")(vocab_size=WORDS, num_labels=CLASSES, **shape[name], **more)
    module: nn.Module = getattr(transformers, kind)(config)
    return module


def peft_model() -> nn.Module:
    import peft

    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_dropout=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers for a deprecated property
        module: nn.Module = peft.get_peft_model(hugging_face("BertForSequenceClassification"), config)
    return module


def module(name: str) -> nn.Module:
    """Build a module by name, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made: nn.Module = MODULES[name]()
        return made.double()


MODULES: dict[str, Any] = {
    "vit": lambda: VIT.build((3, 8, 8), CLASSES),
    "gpt, tied": lambda: TINY_GPT.build((LENGTH,), WORDS, WORDS),
    "gpt, lora": lambda: LoRA(model=TINY_GPT, rank=2).build((LENGTH,), WORDS, WORDS),
    "vit, lora and head": lambda: LoRA(model=VIT, rank=2, targets=("qkv",), train=("5",)).build((3, 8, 8), CLASSES),
    "vit, biases": lambda: bits(VIT.build((3, 8, 8), CLASSES)),
    "own parameters": OwnParameters,
    "own parameters, repeated": lambda: OwnParameters(repeat=True),
    "encoder": Encoder,
    "encoder, time first": lambda: Encoder(batch_first=False),
    "attention": Attention,
    "bert": lambda: hugging_face("BertForSequenceClassification"),
    "distilbert": lambda: hugging_face("DistilBertForSequenceClassification"),
    "gpt2": lambda: hugging_face("GPT2LMHeadModel"),
    "gpt2, lora": lambda: LoRA(model=TINY_GPT, rank=2, targets=("c_attn",)).adapt(hugging_face("GPT2LMHeadModel")),
    "llama": lambda: hugging_face("LlamaForCausalLM"),
    "bert, peft": peft_model,
}
VMAPPED = ("own parameters, repeated", "encoder, time first")
"""Modules that no stacked form agrees with."""


def work(name: str, rule: ClientRule) -> ClientRuntime:
    """Return the runtime of clients that train a module by name."""
    if name.startswith(("bert", "distilbert")):
        data, task = masked(), "classification"
    elif name.startswith(("gpt2", "llama")):
        data, task = masked((LENGTH,)), "language-modeling"
    elif name.startswith(("vit", "own")):
        data, task = images(), "classification"
    else:
        data, task = texts(), "language-modeling"
    parts = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return ClientRuntime(
        TrainingContext(module(name), PartitionedDataset.of(data, parts), rule, torch.device("cpu"), task=TASKS[task]())
    )


def jobs(w: ClientRuntime) -> list[Job]:
    """Return one job per client, each from a model of its own, in which nothing is zero."""
    x = w.context.layout.read(w.context.module)
    g = torch.Generator().manual_seed(1)
    starts = [x + 0.02 * torch.randn(x.shape, generator=g, dtype=x.dtype) for _ in SIZES]
    return [Job(i, i, i, start, w.context.steps(i), key(9, i)) for i, start in enumerate(starts)]
