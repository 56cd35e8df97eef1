"""Locate the developer tools that are part of a checkout but not of the wheel."""

from __future__ import annotations

import os
import pathlib
import sys

from offbeat.errors import OffbeatError

TOOLS = pathlib.Path(__file__).parents[3] / "tools"


def enable_tools(command: str) -> None:
    """Make the packages under `tools/` importable, also for child processes.

    Args:
        command: The command that needs them, for the error message.

    Raises:
        OffbeatError: offbeat runs from an installed wheel, which does not contain them.
    """
    if not (TOOLS / "offbeat_bench").is_dir():
        raise OffbeatError(
            f"`offbeat {command}` needs a checkout of the repository: its code is not part of the installed package. "
            "Clone the repository and run `make run` or `pip install --editable .` there."
        )
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(TOOLS) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([*known, str(TOOLS)])
