"""The same algorithms with real clients, on Flower."""

from offbeat.deploy.strategy import AsyncStrategy

__all__ = ["AsyncStrategy"]
