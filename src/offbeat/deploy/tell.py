"""What the user is told while others work."""

from __future__ import annotations

from collections.abc import Callable

SHOWN = 3  # how often the same words are told

Tell = Callable[[str], None]


class RepeatLimiter:
    """Tells the same words a few times only."""

    def __init__(self, tell: Tell) -> None:
        self.tell, self.times = tell, dict[str, int]()

    def __call__(self, text: str) -> None:
        self.times[text] = self.times.get(text, 0) + 1
        if self.times[text] <= SHOWN:
            self.tell(text)
