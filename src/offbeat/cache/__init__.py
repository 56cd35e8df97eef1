"""Caches of the latest update of each client."""

from offbeat.cache.base import UpdateCache
from offbeat.cache.client_side import ClientSide
from offbeat.cache.dense import Dense
from offbeat.cache.disk import Disk
from offbeat.cache.quantized import Quantized

CACHES: dict[str, type[UpdateCache]] = {"dense": Dense, "quantized": Quantized, "disk": Disk, "client-side": ClientSide}

__all__ = ["CACHES", "ClientSide", "Dense", "Disk", "Quantized", "UpdateCache"]
