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


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return a sentence that lists the valid names and suggests the closest one."""
    names = list(valid)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"valid: {', '.join(names)}.{hint}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class name if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
