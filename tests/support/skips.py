"""Loud skips: a summary of what did not run and why, and a failure on CI when a skip is unexpected."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

EXPECTED = (
    r"needs a GPU",  # CI machines have none
    r"on a GPU whole executors are tested",
    r"\.\./shared/data",  # real data sets are not part of the repository
    r"may not mount a small disk",  # needs root
)
"""Reasons (regular expressions) for which a test may be skipped on CI."""


def counted(reasons: Iterable[str]) -> Counter[str]:
    """Return how often each reason occurs, without pytest's prefix."""
    return Counter(reason.removeprefix("Skipped: ") for reason in reasons)


def unexpected(reasons: Iterable[str]) -> list[str]:
    """Return the reasons that CI does not accept.

    `OFFBEAT_MISSING_PROGRAMS` names programs that the CI machine could not install; skips that name one are accepted.
    """
    programs = [name.split("-")[0] for name in os.environ.get("OFFBEAT_MISSING_PROGRAMS", "").split()]
    accepted = [*EXPECTED, *(rf"needs {re.escape(name)}" for name in programs)]
    return sorted({reason for reason in reasons if not any(re.search(pattern, reason) for pattern in accepted)})
