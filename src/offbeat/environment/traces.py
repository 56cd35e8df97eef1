"""Availability and delays from traces of real devices.

Client i uses the i-th record, modulo the number of records. A trace repeats when it ends.
"""

from __future__ import annotations

import bisect
import functools
import gzip
import json
import math
import pathlib
from dataclasses import dataclass
from typing import Any, Literal

from offbeat.environment.availability import Availability, Span
from offbeat.environment.delays import Delay, Devices, Trip
from offbeat.errors import DataError
from offbeat.options import NonNegative, PositiveInt
from offbeat.random import key, normal

KBIT = 125.0  # bytes per kilobit


@functools.cache
def read(path: str) -> Any:
    """Return the contents of a JSON file, gzipped or not."""
    try:
        raw = pathlib.Path(path).read_bytes()
        return json.loads(gzip.decompress(raw) if path.endswith(".gz") else raw)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"trace {path!r} cannot be read: {error}") from error


@functools.cache
def devices(path: str, *needed: str) -> tuple[dict[str, float], ...]:
    """Return the records of a file {device: {…}}, each of which must have the needed entries."""
    whole = read(path)
    if (
        not isinstance(whole, dict)
        or not whole
        or not all(isinstance(d, dict) and set(needed) <= set(d) for d in whole.values())
    ):
        raise DataError(f"trace {path!r}: expected {', '.join(needed)} for each device")
    return tuple(whole.values())


@dataclass(frozen=True)
class Awake:
    """Availability of one device: it starts unavailable, changes at the given times and repeats after a period."""

    changes: tuple[float, ...]
    period: float

    def span(self, now: float) -> Span:
        """Return whether the device is available, and the time of the next change."""
        laps, at = divmod(now, self.period)
        place = bisect.bisect_right(self.changes, at)
        end = self.changes[place] if place < len(self.changes) else self.period
        until = laps * self.period + end
        if until <= now:  # because of rounding at the end of a period
            return self.span(math.nextafter(now, math.inf))
        return place % 2 == 1, until


def fedscale(record: dict[str, Any]) -> Awake:
    """Parse a FedScale record {active: [s…], inactive: [s…], finish_time}: the starts and the ends of the spans."""
    spans = zip(record["active"], record["inactive"], strict=False)
    return _awake([(float(a), float(b)) for a, b in spans], float(record["finish_time"]))


def flash_events(events: list[list[float]], period: float) -> Awake:
    """Parse FLASH events [[second, state]…], where state 1 means available and able to train."""
    ends = [*(float(at) for at, _ in events[1:]), period]
    return _awake([(float(at), end) for (at, state), end in zip(events, ends, strict=True) if state == 1], period)


def flash_absences(absences: list[list[float]], period: float) -> Awake:
    """Parse FLASH absences [[start, duration]…]."""
    edges = [0.0, *(float(t) for start, length in absences for t in (start, start + length)), period]
    return _awake(list(zip(edges[::2], edges[1::2], strict=False)), period)


def _awake(spans: list[tuple[float, float]], period: float) -> Awake:
    """Merge spans that may touch or overlap into a record."""
    merged: list[list[float]] = []
    for start, end in sorted((max(0.0, a), min(b, period)) for a, b in spans if b > a):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        elif start < period:
            merged.append([start, end])
    return Awake(tuple(edge for span in merged for edge in span), period)


@functools.cache
def records(path: str, states: str) -> tuple[Awake, ...]:
    """Return the records of all devices of a trace file in any of the known formats."""
    whole = read(path)
    clients = whole.get("clients", whole) if isinstance(whole, dict) else {}
    devices = list(clients.values())
    try:
        if "active" in devices[0]:
            parsed = [fedscale(device) for device in devices]
        elif isinstance(devices[0], dict):
            period = max(float(device[states][-1][0]) for device in devices) + 1.0
            parsed = [flash_events(device[states], period) for device in devices]
        else:
            period = max(float(start) + float(length) for device in devices for start, length in device) + 1.0
            parsed = [flash_absences(device, period) for device in devices]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"trace {path!r} has none of the known formats: {error!r}") from error
    return tuple(parsed)


@dataclass(kw_only=True, frozen=True)
class Trace(Availability):
    """Recorded availability: FedScale's behavior traces, or FLASH's traces in either format."""

    file: str
    """Path of the trace, a JSON file, gzipped or not."""
    states: Literal["2st", "3st"] = "2st"
    """Recording to use of a FLASH file with events."""

    def span(self, client: int, client_key: int, now: float) -> Span:
        """Return whether the client's device is available, and the time of its next change."""
        known = records(self.file, self.states)
        return known[client % len(known)].span(now)

    def next_change(self, now: float) -> float:
        """Return the next change of any device."""
        return min(device.span(now)[1] for device in records(self.file, self.states))


@dataclass(kw_only=True, frozen=True)
class FedScaleDevices(Delay):
    """FedScale's capacity trace: {client: {computation: ms per example, communication: kbit/s}}."""

    file: str
    """Path of the trace, a JSON file, gzipped or not."""
    examples_per_step: PositiveInt = 32
    """Examples per local step, usually `client.batch_size`. The trace gives the time per example."""

    def _device(self, client: int) -> tuple[float, float]:
        known = devices(self.file, "computation", "communication")
        device = known[client % len(known)]
        return self.examples_per_step * device["computation"] / 1000, device["communication"] * KBIT

    def seconds(self, trip: Trip) -> float:
        """Return the time of the local steps and the transfers."""
        step, bandwidth = self._device(trip.client)
        return trip.steps * step + (trip.bytes_down + trip.bytes_up) / bandwidth

    def profile(self, client: int, client_key: int, model_bytes: int) -> tuple[float, float]:
        """Return the seconds per step and the seconds to upload the model."""
        step, bandwidth = self._device(client)
        return step, model_bytes / bandwidth


@dataclass(kw_only=True, frozen=True)
class FlashSpeeds(Delay):
    """FLASH's phones: bandwidths in kbit/s, drawn for every trip from the measured means and deviations."""

    file: str
    """Path of the trace, a JSON file, gzipped or not."""
    step_seconds: NonNegative = 0.588
    """Seconds per local step. The default is that of FLASH's mid-range phone on its FEMNIST CNN."""

    def seconds(self, trip: Trip) -> float:
        """Return the time of the local steps and the transfers."""
        phones = devices(self.file, "down_u", "down_sigma", "up_u", "up_sigma")
        phone = phones[trip.client % len(phones)]
        down = self._bandwidth(phone["down_u"], phone["down_sigma"], key(trip.trip_key, "down"))
        up = self._bandwidth(phone["up_u"], phone["up_sigma"], key(trip.trip_key, "up"))
        return trip.steps * self.step_seconds + trip.bytes_down / down + trip.bytes_up / up

    @staticmethod
    def _bandwidth(mean: float, sigma: float, k: int) -> float:
        return max(0.1 * mean, mean + sigma * normal(k)) * KBIT  # at least a tenth of the mean


# Seconds per example, kbit/s and standard deviation of the logarithms (the mean of the two), from the first hundred
# devices of FedScale's capacity trace. phones: the medians of all devices; silos: those of the tenth with the fastest
# processors and of the tenth with the highest bandwidth; iot: those of the slowest tenths.
MIXES = {"phones": (0.0465, 5388.0, 1.0), "silos": (0.018, 53126.0, 0.3), "iot": (0.192, 1117.0, 0.1)}


@functools.cache
def _population(kind: str, examples_per_step: int) -> Devices:
    step, kbits, sigma = MIXES[kind]
    return Devices(median_step=step * examples_per_step, median_up=kbits * KBIT, median_down=kbits * KBIT, sigma=sigma)


@dataclass(kw_only=True, frozen=True)
class Mix(Delay):
    """A population with the statistics of FedScale's capacity trace, for any number of clients."""

    kind: Literal["phones", "silos", "iot"] = "phones"
    """Devices: all phones of the trace, the fastest ones, or the slowest ones."""
    examples_per_step: PositiveInt = 32
    """Examples per local step, usually `client.batch_size`. The trace gives the time per example."""

    def seconds(self, trip: Trip) -> float:
        """Return the time of the local steps and the transfers."""
        return _population(self.kind, self.examples_per_step).seconds(trip)

    def profile(self, client: int, client_key: int, model_bytes: int) -> tuple[float, float]:
        """Return the seconds per step and the seconds to upload the model."""
        return _population(self.kind, self.examples_per_step).profile(client, client_key, model_bytes)
