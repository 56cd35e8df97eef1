"""How often a run writes checkpoints."""

from __future__ import annotations

from collections.abc import Callable

MIN_SECONDS = 30.0  # between two checkpoints
MAX_SHARE = 0.05  # of the time that may go into writing checkpoints
BYTES_PER_SECOND = 5e8  # assumed speed of writing, before the first checkpoint has been timed


class CheckpointPacer:
    """Decide when a checkpoint is due, so that writing them takes only a small share of the time.

    Args:
        runs: Number of runs that are driven together; all wait while one of them writes a checkpoint.
        estimate_bytes: Returns the approximate size of a checkpoint.
        now: Time at which the run starts; all times are in seconds of a monotonic clock.
    """

    def __init__(self, runs: int, estimate_bytes: Callable[[], int], now: float) -> None:
        self._runs, self._estimate_bytes = runs, estimate_bytes
        self._last, self._pause, self._measured = now, MIN_SECONDS, False

    def due(self, now: float) -> bool:
        """Return whether the run should write a checkpoint now."""
        if not self._measured and now - self._last > self._pause:
            self._expect(self._estimate_bytes() / BYTES_PER_SECOND)
        return now - self._last > self._pause

    def written(self, started: float, ended: float) -> None:
        """Note that a checkpoint was written between two times."""
        self._last = ended
        self._expect(ended - started)

    def _expect(self, seconds: float) -> None:
        """Set the pause for checkpoints that take the given time."""
        self._pause, self._measured = max(MIN_SECONDS, self._runs * seconds / MAX_SHARE), True
