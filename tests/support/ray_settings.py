"""Environment variables of a Ray cluster in tests."""

from __future__ import annotations

SETTINGS = {
    "RAY_AUTH_TOKEN": "0" * 64,  # or there will be a file in the home
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # as all others: tests run at the same time
}
