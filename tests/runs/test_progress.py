"""Progress bars in a terminal, and plain lines elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from offbeat.data.preparing import Preparing, preparing, watched
from offbeat.runs import progress
from offbeat.runs.progress import Bars, Display, Measuring, SweepDisplay
from offbeat.runs.result import ProgressSnapshot, RunCounters

LABEL = "a label that is longer than a narrow terminal is wide, by far"


def snapshot(version: int, rounds: int = 1500) -> ProgressSnapshot:
    counters = RunCounters(version=version, virtual_seconds=1234.5, wall_seconds=2.0, client_steps=123_456, updates=1)
    return ProgressSnapshot(counters, rounds, None, [{"version": version, "accuracy": 0.8731}])


def console(width: int = 80, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)


def seen(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def frame(of: Console) -> list[str]:
    """Return the last frame before the screen was cleared."""
    text = re.sub(r"\x1b\[\?25[lh]", "", seen(of))
    frames = [part for part in re.split(r"(?:\r|\x1b\[\d*[A-K])+", text) if part.strip()]
    return [line.rstrip() for line in frames[-1].splitlines()]


@pytest.fixture(params=[40, 80])
def width(request: pytest.FixtureRequest) -> int:
    columns: int = request.param
    return columns


def test_a_run(width: int) -> None:
    screen = console(width)
    with Display(screen, LABEL) as display:
        display.watch(snapshot(123))
    bar, figures = frame(screen)
    assert bar.startswith("a label")
    assert "round 123 of 1,500" in bar
    assert figures.startswith("  1,234 s virtual  acc 87.3 %")
    assert all(len(line) <= width for line in (bar, figures))


def test_a_sweep_shows_all_runs_and_those_at_work(width: int) -> None:
    screen = console(width)
    with SweepDisplay(screen, 7) as display:
        display.check(7)
        for _ in range(2):  # one run each
            (watch,) = display.begin([LABEL])
            assert watch is not None
            watch(snapshot(1500))
            display.end()
        first, second, third = display.begin(["a", "b", "c"])
        assert first
        assert second
        assert third
        first(snapshot(1500))
        second(snapshot(300))
        third(snapshot(0))
    everything, now, figures = frame(screen)
    assert everything.startswith("sweep")
    assert "3 of 7 runs" in everything, "two before, and one of those at work"
    assert now.startswith("3 runs at")
    assert "round 1,800" in now
    assert all(len(line) <= width for line in (everything, now, figures))


def test_checking_a_sweep() -> None:
    screen = console()
    with SweepDisplay(screen, 7) as display:
        display.check(3)
    assert "3 of 7 checked" in frame(screen)[0]


def test_preparing_data(width: int) -> None:
    screen = console(width)
    with Bars(screen), preparing("mnist"), preparing("train-images-idx3-ubyte.gz", 9_000_000, in_bytes=True) as tell:
        tell(4_000_000)
        (line,) = _now(screen)
        assert "4 of 9 MB" in line
        assert len(line) <= width


def _now(screen: Console) -> list[str]:
    """Redraw and return the frame."""
    live = screen._live_stack[-1]
    live.refresh()
    return frame(screen)


def test_measuring(width: int) -> None:
    screen = console(width)
    with Measuring(screen) as measuring:
        measuring.next("ca2fl, dense memory", 0, 3)
        measuring.next("ca2fl, quantized memory, and more than fits", 1, 3)
    bar, what = frame(screen)
    assert "2 of 3" in bar
    assert what.startswith("  ca2fl, quantized")
    assert len(what) <= width


@pytest.mark.parametrize(("terminal", "quiet"), [(False, False), (False, True), (True, True)])
def test_no_bar_in_a_pipe_or_when_quiet(terminal: bool, quiet: bool) -> None:
    screen = console(terminal=terminal)
    with Display(screen, "label", quiet) as display, preparing("mnist", 5) as tell:
        tell(3)
        display.watch(snapshot(3))
    with SweepDisplay(screen, 2, quiet) as sweep:
        sweep.check(2)
        (watch,) = sweep.begin(["one"])
        assert watch is not None
        watch(snapshot(3))
        sweep.end()
    assert seen(screen) == ""


def test_plain_lines_in_a_pipe_say_how_many_runs_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", -1.0)
    screen = console(40, terminal=False)
    with SweepDisplay(screen, 2) as sweep:
        for label in ("one", "two"):
            (watch,) = sweep.begin([label])
            assert watch is not None
            watch(snapshot(750))
            watch(snapshot(750))
            sweep.end()
    lines = seen(screen).splitlines()
    assert [line.split(":")[0] for line in lines] == ["0 of 2 runs, one", "1 of 2 runs, two"], "each test once"
    assert lines[0].endswith("about 2 s left")


def test_preparation_reports_its_start_and_its_end() -> None:
    told: list[Preparing | None] = []
    with preparing("nobody looks") as tell:
        tell(1)
    with watched(told.append), preparing("outer"), preparing("inner", 3) as tell:
        tell(2)
    outer, inner = Preparing("outer"), Preparing("inner", 0, 3)
    assert told == [outer, inner, Preparing("inner", 2, 3), outer, None]
