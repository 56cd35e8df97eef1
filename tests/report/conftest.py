from tests.shown import mixed, runs

__all__ = ["mixed", "runs"]
