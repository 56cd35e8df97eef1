"""The same algorithms with real clients, on Flower."""

from offbeat.deploy.strategy import AsyncStrategy
from offbeat.deploy.wire import coded_reply

__all__ = ["AsyncStrategy", "coded_reply"]
