"""offbeat on Flower: the asynchronous strategy, its transport, event log and replay, and the client app."""

from offbeat.flower.strategy import AsyncStrategy
from offbeat.flower.wire import coded_reply

__all__ = ["AsyncStrategy", "coded_reply"]
