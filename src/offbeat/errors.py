"""Exceptions that offbeat raises on purpose.

OffbeatError             anything that a user can fix; the command line prints it and exits with status 2
├── ConfigError          a key, a value or a combination of settings that cannot work
├── DataError            files that are missing, damaged or of the wrong shape
├── DivergenceError      training produced a number that is not finite
└── RunFolderError       a run folder that cannot be written, read or resumed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OffbeatError(Exception):
    """Base class of all errors that a user can fix."""


class ConfigError(OffbeatError):
    """A setting that cannot work.

    Args:
        message: What is wrong, what is valid, and what to do.
        key: Dotted name of the setting where it is known, so that callers can prefix it.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        self.key = key
        self.message = message
        super().__init__(f"{key}: {message}" if key else message)

    def within(self, table: str) -> ConfigError:
        """Return the error with its key prefixed by a table: `eta` becomes `algorithm.eta`."""
        return ConfigError(self.message, key=".".join(part for part in (table, self.key) if part))


class DataError(OffbeatError):
    """Data that is missing, damaged or of the wrong shape."""


class DivergenceError(OffbeatError):
    """Training produced a loss or an update that is not finite."""


class RunFolderError(OffbeatError):
    """A run folder that cannot be written, read or resumed."""


SYNONYMS: dict[str, tuple[str, ...]] = {
    # keys
    "learning_rate": ("lr", "eta", "client.lr"),
    "local_lr": ("lr", "client.lr"),
    "client_lr": ("lr", "client.lr"),
    "lr": ("eta", "client.lr"),
    "server_lr": ("eta", "algorithm.eta"),
    "global_lr": ("eta", "algorithm.eta"),
    "optimizer": ("client.name",),
    "optim": ("optimizer", "client.name"),
    "local_optimizer": ("client.name",),
    "server_optimizer": ("optimizer", "algorithm.optimizer"),
    "batchsize": ("batch_size", "client.batch_size"),
    "batch_size": ("client.batch_size",),
    "local_epochs": ("epochs", "client.epochs"),
    "epochs": ("client.epochs",),
    "local_steps": ("steps", "client.steps"),
    "momentum": ("client.momentum",),
    "weight_decay": ("client.weight_decay",),
    "num_clients": ("clients", "data.clients"),
    "n_clients": ("clients", "data.clients"),
    "clients": ("data.clients",),
    "dataset": ("name", "data"),
    "partitioner": ("partition", "data.partition"),
    "partition": ("data.partition",),
    "num_rounds": ("rounds",),
    "iterations": ("rounds",),
    "max_steps": ("rounds",),
    "max_time": ("virtual_seconds",),
    "random_seed": ("seed",),
    "buffer_size": ("buffer", "scheduler.buffer"),
    "buffer": ("scheduler.buffer",),
    "cohort": ("concurrency", "scheduler.concurrency"),
    "clients_per_round": ("concurrency", "scheduler.concurrency"),
    "concurrency": ("scheduler.concurrency",),
    "delay": ("environment.delay",),
    "loss": ("task",),
    "loss_fn": ("task",),
    "compressor": ("upload", "compression.upload"),
    "eval_every": ("every", "evaluation.every"),
    "target": ("evaluation.target",),
    "early_stopping": ("patience", "evaluation.patience"),
    # names
    "fedprox": ('client.name = "prox"',),
    "scaffold": ('client.name = "scaffold"',),
    "logistic-regression": ("lr",),
    "logistic": ("lr",),
    "linear": ("lr",),
    "non-iid": ("dirichlet",),
    "lda": ("dirichlet",),
    "shards": ("label-shards",),
    "sync": ("rounds",),
    "synchronous": ("rounds",),
    "async": ("continuous",),
    "asynchronous": ("continuous",),
    "nesterov": ("momentum",),
    "quantization": ("qsgd",),
    "cross-entropy": ("classification",),
    "mse": ("regression",),
}
"""Words of other programs, with ours. The first that is valid is suggested, or the last: a key of another table."""


def nearest(name: object, valid: Iterable[str], place: str = "") -> str:
    """Return a sentence that lists the valid names and suggests the one that means the same, or the closest one.

    Args:
        name: The unknown name.
        valid: The valid names.
        place: The dotted key that was given, which is not suggested.
    """
    names = list(valid)
    word = str(name).lower()
    same = SYNONYMS.get(word) or SYNONYMS.get(word.replace("-", "_")) or ()
    close = [each for each in same if each in names][:1] or [each for each in same if "." in each and each != place][
        -1:
    ]
    close = close or difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"valid: {', '.join(names)}.{hint}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
