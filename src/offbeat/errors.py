"""Everything offbeat raises on purpose.

OffbeatError             anything the user can mend; the command line prints it and exits with status 2
├── ConfigError          a key, a value or a combination of them that cannot work
├── DataError            files that are missing, damaged or of the wrong shape
├── DivergenceError      training produced a number that is not finite
└── RunFolderError       a run folder that cannot be written, read or resumed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OffbeatError(Exception):
    """Base of all errors that a user can mend."""


class ConfigError(OffbeatError):
    """A setting that cannot work.  `key` is its dotted name when it is known, so that callers can prefix it."""

    def __init__(self, message: str, *, key: str = "") -> None:
        self.key = key
        self.message = message
        super().__init__(f"{key}: {message}" if key else message)

    def within(self, table: str) -> ConfigError:
        """The same error seen from outside: `eta` of table `algorithm` becomes `algorithm.eta`."""
        return ConfigError(self.message, key=".".join(part for part in (table, self.key) if part))


class DataError(OffbeatError):
    """Data that is missing, damaged or of the wrong shape."""


class DivergenceError(OffbeatError):
    """Training produced a loss or an update that is not finite."""


class RunFolderError(OffbeatError):
    """A run folder that cannot be written, read or resumed."""


def nearest(name: object, valid: Iterable[str]) -> str:
    """A sentence that lists the valid names and points at the closest one."""
    names = list(valid)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"valid: {', '.join(names)}.{hint}"


def first_line(error: BaseException) -> str:
    """Of what it says; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
