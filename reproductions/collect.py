"""Gather what the page needs from the run folders of a reproduction: `python -m reproductions.collect NAME FOLDER…`.

The runs may be in several folders, such as one per seed. `--merge` adds them to those of `results/NAME.json`, where
they replace runs with the same label and seed; runs of one label have the same settings. Each run has the commit at
which it is collected: collect before the code changes.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys

from offbeat.errors import OffbeatError
from offbeat.reproductions import files, results
from offbeat.reproductions.collect import collect


def store(name: str, folders: list[pathlib.Path], target: float | None = None, merge: bool = False) -> str:
    """Write the runs in some folders to the results, and return a summary.

    Args:
        name: The reproduction.
        folders: Folders of sweeps.
        target: The accuracy of `target_seconds` and the like; by default that of the runs.
        merge: Keep the runs that are already stored.
    """
    found = collect(name, folders, _commit(), target)
    old = results.read(files.stored(name)) if merge else None
    if old is not None:
        found = results.merged(name, old, found)
    results.write(found, files.stored(name))
    return "; ".join([f"{files.stored(name).name}: {len(found.runs)} runs", *results.shortened(name, found)])


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("name")
    words.add_argument("folders", type=pathlib.Path, nargs="+", metavar="folder")
    words.add_argument("--target", type=float, help="accuracy of the figures target_…, as a fraction")
    words.add_argument("--merge", action="store_true", help="keep the runs that are already stored")
    told = words.parse_args()
    try:
        sys.stdout.write(store(told.name, told.folders, told.target, told.merge) + "\n")
    except OffbeatError as error:
        raise SystemExit(f"collect: {error}") from error


if __name__ == "__main__":
    main()
