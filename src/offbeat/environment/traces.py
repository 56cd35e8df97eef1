"""Recorded devices instead of laws: when they were awake, how fast they were.

Traces are replayed by client (client i takes the i-th record, again from the first when there are more clients than
records) and wrapped around in time.
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

KBIT = 125.0  # bytes


@functools.cache
def read(path: str) -> Any:
    """A JSON file, gzipped or not."""
    try:
        raw = pathlib.Path(path).read_bytes()
        return json.loads(gzip.decompress(raw) if path.endswith(".gz") else raw)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"trace {path!r} cannot be read: {error}") from error


@functools.cache
def devices(path: str, *needed: str) -> tuple[dict[str, float], ...]:
    """A file of {device: {…}} with these figures for each."""
    whole = read(path)
    if (
        not isinstance(whole, dict)
        or not whole
        or not all(isinstance(d, dict) and set(needed) <= set(d) for d in whole.values())
    ):
        raise DataError(f"trace {path!r}: for each device {', '.join(needed)} expected")
    return tuple(whole.values())


@dataclass(frozen=True)
class Awake:
    """One device's record: the moments at which it changes, starting asleep, and the length after which it repeats."""

    changes: tuple[float, ...]
    period: float

    def span(self, now: float) -> Span:
        laps, at = divmod(now, self.period)
        place = bisect.bisect_right(self.changes, at)
        end = self.changes[place] if place < len(self.changes) else self.period
        until = laps * self.period + end
        if until <= now:  # rounding has put the end of a lap before its beginning
            return self.span(math.nextafter(now, math.inf))
        return place % 2 == 1, until


def fedscale(record: dict[str, Any]) -> Awake:
    """{active: [s…], inactive: [s…], finish_time}: the i-th `active` starts a span, the i-th `inactive` ends it."""
    spans = zip(record["active"], record["inactive"], strict=False)
    return _awake([(float(a), float(b)) for a, b in spans], float(record["finish_time"]))


def flash_events(events: list[list[float]], period: float) -> Awake:
    """[[second, state]…]: state 1 is awake and able to train."""
    ends = [*(float(at) for at, _ in events[1:]), period]
    return _awake([(float(at), end) for (at, state), end in zip(events, ends, strict=True) if state == 1], period)


def flash_absences(absences: list[list[float]], period: float) -> Awake:
    """[[start, duration]…] of being away."""
    edges = [0.0, *(float(t) for start, length in absences for t in (start, start + length)), period]
    return _awake(list(zip(edges[::2], edges[1::2], strict=False)), period)


def _awake(spans: list[tuple[float, float]], period: float) -> Awake:
    """Spans that may touch or overlap → changes."""
    merged: list[list[float]] = []
    for start, end in sorted((max(0.0, a), min(b, period)) for a, b in spans if b > a):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        elif start < period:
            merged.append([start, end])
    return Awake(tuple(edge for span in merged for edge in span), period)


@functools.cache
def records(path: str, states: str) -> tuple[Awake, ...]:
    """All devices of a trace file, whichever of the known formats it has."""
    whole = read(path)
    clients = whole.get("clients", whole) if isinstance(whole, dict) else {}
    devices = list(clients.values())
    try:
        if "active" in devices[0]:
            made = [fedscale(device) for device in devices]
        elif isinstance(devices[0], dict):
            period = max(float(device[states][-1][0]) for device in devices) + 1.0
            made = [flash_events(device[states], period) for device in devices]
        else:
            period = max(float(start) + float(length) for device in devices for start, length in device) + 1.0
            made = [flash_absences(device, period) for device in devices]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"trace {path!r} has none of the known formats: {error!r}") from error
    return tuple(made)


@dataclass(kw_only=True, frozen=True)
class Trace(Availability):
    """Replayed presence: FedScale's behaviour traces, or FLASH's in either form."""

    file: str
    """The trace, JSON, gzipped or not."""
    states: Literal["2st", "3st"] = "2st"
    """Which of the two recordings of a FLASH file with events."""

    def span(self, client: int, client_key: int, now: float) -> Span:
        known = records(self.file, self.states)
        return known[client % len(known)].span(now)

    def next_change(self, now: float) -> float:
        return min(device.span(now)[1] for device in records(self.file, self.states))


@dataclass(kw_only=True, frozen=True)
class FedScaleDevices(Delay):
    """FedScale's capacity trace: {client: {computation: ms an example, communication: kbit/s}}."""

    file: str
    """The trace, JSON, gzipped or not."""
    examples_per_step: PositiveInt = 32
    """`client.batch_size`: the trace's unit of work is an example."""

    def _device(self, client: int) -> tuple[float, float]:
        known = devices(self.file, "computation", "communication")
        device = known[client % len(known)]
        return self.examples_per_step * device["computation"] / 1000, device["communication"] * KBIT

    def seconds(self, trip: Trip) -> float:
        step, line = self._device(trip.client)
        return trip.steps * step + (trip.bytes_down + trip.bytes_up) / line

    def profile(self, client: int, client_key: int, model_bytes: int) -> tuple[float, float]:
        step, line = self._device(client)
        return step, model_bytes / line


@dataclass(kw_only=True, frozen=True)
class FlashSpeeds(Delay):
    """FLASH's measured phones: mean and deviation of up and down speed in kbit/s, drawn anew for every trip."""

    file: str
    """The trace, JSON, gzipped or not."""
    step_seconds: NonNegative = 0.588
    """Seconds a local step; the default is FLASH's middle phone on its FEMNIST CNN."""

    def seconds(self, trip: Trip) -> float:
        phones = devices(self.file, "down_u", "down_sigma", "up_u", "up_sigma")
        phone = phones[trip.client % len(phones)]
        down = self._speed(phone["down_u"], phone["down_sigma"], key(trip.trip_key, "down"))
        up = self._speed(phone["up_u"], phone["up_sigma"], key(trip.trip_key, "up"))
        return trip.steps * self.step_seconds + trip.bytes_down / down + trip.bytes_up / up

    @staticmethod
    def _speed(mean: float, sigma: float, k: int) -> float:
        return max(0.1 * mean, mean + sigma * normal(k)) * KBIT  # a line is never quite dead


# Medians and log-deviations of the first hundred devices of FedScale's capacity trace: all of them; the tenth with the
# fastest processors and the tenth with the best lines; the tenth with the slowest and the tenth with the worst.
# Seconds an example, kbit/s, deviation (the mean of the two).
MIXES = {"phones": (0.0465, 5388.0, 1.0), "silos": (0.018, 53126.0, 0.3), "iot": (0.192, 1117.0, 0.1)}


@functools.cache
def _population(kind: str, examples_per_step: int) -> Devices:
    step, line, sigma = MIXES[kind]
    return Devices(median_step=step * examples_per_step, median_up=line * KBIT, median_down=line * KBIT, sigma=sigma)


@dataclass(kw_only=True, frozen=True)
class Mix(Delay):
    """A population of devices in the manner of a trace, for any number of clients."""

    kind: Literal["phones", "silos", "iot"] = "phones"
    """Phones as in FedScale's trace, its fastest devices, or its slowest."""
    examples_per_step: PositiveInt = 32
    """`client.batch_size`: the figures are for one example."""

    def seconds(self, trip: Trip) -> float:
        return _population(self.kind, self.examples_per_step).seconds(trip)

    def profile(self, client: int, client_key: int, model_bytes: int) -> tuple[float, float]:
        return _population(self.kind, self.examples_per_step).profile(client, client_key, model_bytes)
