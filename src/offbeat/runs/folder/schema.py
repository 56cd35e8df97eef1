"""Names and formats of the files in a run folder.

config.toml        the complete experiment
metrics.jsonl      one line per evaluation
client_metrics.jsonl  one line per evaluation, with a list of values per client for each metric (optional)
label_metrics.jsonl   the same with a list of values per class label (optional)
updates.npy        one row per completed job (`numpy.load` reads it, also during the run)
model.safetensors  the final model, under its own parameter names
personal.safetensors  what stays on the clients, as "client.name" (with `personalization`)
summary.json       the result; exists once the run is finished
status.json        running, finished, interrupted or failed; versions and hardware
setting.json       facts that the config does not state: the partition, the attackers, the network
checkpoint/        the state from which `offbeat resume` continues
"""

from __future__ import annotations

import numpy as np

from offbeat.server.reasons import REASONS

CONFIG = "config.toml"
METRICS = "metrics.jsonl"
CLIENT_METRICS = "client_metrics.jsonl"
LABEL_METRICS = "label_metrics.jsonl"
UPDATES = "updates.npy"
MODEL = "model.safetensors"
PERSONAL = "personal.safetensors"
SUMMARY = "summary.json"
STATUS_FILE = "status.json"
SETTING = "setting.json"
CHECKPOINT = "checkpoint"
LOCK = ".lock"
CACHE = "cache"  # folder of an update cache on disk
BEFORE_RESULT = {
    CONFIG, METRICS, CLIENT_METRICS, LABEL_METRICS, UPDATES, STATUS_FILE, SETTING, CHECKPOINT, LOCK, CACHE,
}  # fmt: skip
"""What a run may have written before its result."""
SWEEP = "sweep.json"  # in the folder of a sweep: the list of its runs

UPDATE = np.dtype(
    [
        ("sent", "<f8"),  # virtual seconds
        ("time", "<f8"),  # of arrival, or when the server gave up waiting
        ("client", "<i4"),
        ("version", "<i4"),  # of the model that the client started from
        ("staleness", "<i4"),
        ("steps", "<i4"),
        ("bytes", "<i8"),
        ("status", "u1"),  # index into STATUS
        ("loss", "<f4"),  # mean training loss over the local steps; NaN if it is not known
    ]
)
"""One row of `updates.npy`."""

FIRST_UPDATE = np.dtype([(name, UPDATE[name]) for name in UPDATE.names or () if name != "loss"])
"""A row as the first release wrote it, which can still be read."""

STATUS = ("aggregated", "lost", "late", *REASONS)
"""How a job can end, in the order of the codes in `updates.npy`."""
