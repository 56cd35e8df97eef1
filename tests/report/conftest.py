from tests.support.run_folders import mixed, runs

__all__ = ["mixed", "runs"]
