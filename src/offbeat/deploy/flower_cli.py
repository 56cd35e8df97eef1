"""Flower's programs and its command line, as offbeat calls them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offbeat.errors import OffbeatError
from offbeat.version import __version__

CALL_SECONDS = 120.0  # for one command of `flwr`
ASK_SECONDS = 10.0  # between two questions how a run is, each of which is a process that takes seconds
ENDED = "finished"  # how the status of a run that is over begins
_NAME = "offbeat"  # of the SuperLink in Flower's config

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    "NO_COLOR": "1",
}
"""Nothing is sent to Flower's makers and nothing is installed; tasks are looked for often beside the seconds that each
takes to start, but not so often that an idle device would feel it."""

_APP = """\
[project]
name = "offbeat"
version = "{version}"
description = "Asynchronous federated learning"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "offbeat"

[tool.flwr.app.components]
serverapp = "{module}:server"
clientapp = "{module}:client"

[tool.flwr.app.config]
"""
# The config of runs of offbeat's own app:
OWN: Mapping[str, str | int | float] = {
    "experiment": "", "out": "", "data-dir": "", "modules": "", "least": 0, "track": "[]",
}  # fmt: skip


def program(name: str) -> str:
    """Where one of Flower's commands lies: beside this Python, or in the PATH."""
    found = shutil.which(name, path=_path())
    if found is None:
        raise OffbeatError(f"{name} is not there: install it with: pip install 'offbeat[flower]'")
    return found


def environment(home: pathlib.Path, modules: Sequence[pathlib.Path] = ()) -> dict[str, str]:
    """For Flower's programs: state under `home`, the user's own modules importable."""
    paths = [str(folder) for folder in modules] + [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": _path(), "PYTHONPATH": os.pathsep.join(paths)}


def _path() -> str:
    """Flower's programs start each other by their names."""
    return os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


@dataclass(frozen=True)
class Link:
    """A SuperLink, as one who submits runs sees it."""

    home: pathlib.Path
    address: str
    ca: pathlib.Path | None = None  # None: no TLS
    modules: Sequence[pathlib.Path] = field(default=())
    app: str = "offbeat.flower.app"  # a module with `server` and `client`
    config: Mapping[str, str | int | float] = field(default_factory=lambda: OWN)  # of its runs, unless told otherwise

    def prepare(self) -> None:
        """Write what `flwr` reads."""
        from tomli_w import dumps

        how: dict[str, Any] = {"insecure": True} if self.ca is None else {"root-certificates": str(self.ca)}
        (self.home / "app").mkdir(parents=True, exist_ok=True)
        text = _APP.format(version=__version__, module=self.app) + dumps(self.config)
        (self.home / "app" / "pyproject.toml").write_text(text, encoding="utf-8")
        config = {"superlink": {"default": _NAME, _NAME: {"address": self.address, **how}}}
        (self.home / "config.toml").write_text(dumps(config), encoding="utf-8")

    @property
    def tls(self) -> list[str]:
        """What a client of this SuperLink is told."""
        return ["--insecure"] if self.ca is None else ["--root-certificates", str(self.ca)]

    def submit(self, told: Mapping[str, str | int | float]) -> str:
        """Start a run of the app; its id."""
        from tomli_w import dumps

        file = self.home / "run.toml"
        file.write_text(dumps(told), encoding="utf-8")
        return str(self._call("run", str(self.home / "app"), _NAME, "--run-config", str(file))["run-id"])

    def status(self, run: str) -> tuple[str, str]:
        """Where a run stands, and why."""
        (found,) = self._call("list", _NAME, "--run-id", run)["runs"]
        return str(found["status"]), str(found.get("details") or found.get("status-details") or "")

    def stop(self, run: str) -> None:
        self._call("stop", run, _NAME)

    def register(self, key: pathlib.Path) -> None:
        """Let the node that has this key's other half take part."""
        self._call("supernode", "register", str(key), _NAME)

    def _call(self, *words: str) -> dict[str, Any]:
        try:
            done = subprocess.run(
                [program("flwr"), *words, "--format", "json"], env=environment(self.home, self.modules),
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CALL_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise OffbeatError(f"flwr {words[0]} has not ended within {CALL_SECONDS:g} s") from None
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {"success": False, "error-message": done.stderr or done.stdout}
        if not answer.get("success"):
            raise OffbeatError(f"flwr {words[0]}: {str(answer.get('error-message', '')).strip()}")
        return answer
