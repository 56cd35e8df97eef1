"""Logs of runs as data frames of pandas, which is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offbeat.errors import OffbeatError
from offbeat.runs.folder import STATUS, UpdateRows


def pandas(instead: str) -> Any:
    """Return the module pandas.

    Args:
        instead: What to use without pandas, for the error message.

    Raises:
        OffbeatError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise OffbeatError(
            f"data frames need pandas; install it with: pip install 'offbeat[notebook]'. Without it, use {instead}"
        ) from error
    return pandas


def frame(rows: Sequence[Mapping[str, Any]], instead: str) -> Any:
    """Return rows as a data frame."""
    return pandas(instead).DataFrame(list(rows))


def updates_frame(log: UpdateRows, instead: str) -> Any:
    """Return the log of completed jobs as a data frame, with words for the status."""
    pd = pandas(instead)
    columns = {name: log[name] for name in log.dtype.names or () if name != "status"}
    made = pd.DataFrame(columns)
    made["status"] = pd.Categorical.from_codes(log["status"].astype("int16"), categories=list(STATUS))
    return made
