"""Reasons for rejecting an update. Free of torch, so that readers of run folders can import them."""

from __future__ import annotations

from typing import Literal, get_args

Reason = Literal[
    "unreadable", "unsolicited", "wrong-job", "wrong-type", "wrong-size", "wrong-extra", "invalid-counts", "not-finite",
    "too-stale", "norm-exceeded",
]  # fmt: skip
"""Why the server rejected an update. The order defines the status codes in `updates.npy`: append only."""

REASONS: tuple[Reason, ...] = get_args(Reason)
