"""Flower's command line: where its programs are, their environment, and calls of `flwr`."""

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

CALL_SECONDS = 120.0  # limit for one call of `flwr`
STATUS_SECONDS = 10.0  # between two status queries, each of which starts a process that takes seconds
FINISHED = "finished"  # prefix of the status of a run that has ended
_NAME = "offbeat"  # of the SuperLink in Flower's config

FLOWER_ENV = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    "NO_COLOR": "1",
}
"""Turns off telemetry and installations. The poll interval is short compared with the seconds that a task takes to
start, but long enough to cost an idle device nothing."""

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

RunConfig = Mapping[str, str | int | float]
APP_CONFIG: RunConfig = {
    "experiment": "", "out": "", "data-dir": "", "modules": "", "min-nodes": 0, "track": "[]",
}  # fmt: skip
"""Defaults of the run config of offbeat's Flower app; Flower accepts only keys that have one."""


def find_program(name: str) -> str:
    """Return the path of one of Flower's commands, next to this Python or on the PATH.

    Raises:
        OffbeatError: The command is not installed.
    """
    path = shutil.which(name, path=_search_path())
    if path is None:
        raise OffbeatError(f"the command {name} was not found; install it with: pip install 'offbeat[flower]'")
    return path


def environment(home: pathlib.Path, modules: Sequence[pathlib.Path] = ()) -> dict[str, str]:
    """Return the environment for Flower's programs.

    Args:
        home: Where Flower keeps its state.
        modules: Folders of user modules that must be importable.
    """
    paths = [str(folder) for folder in modules] + [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {
        **os.environ, **FLOWER_ENV, "FLWR_HOME": str(home), "PATH": _search_path(),
        "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip


def _search_path() -> str:
    """Return a PATH with this Python's folder first: Flower's programs start each other by name."""
    return os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


@dataclass(frozen=True)
class Link:
    """Connection to a SuperLink: its address, and the calls of `flwr` that control it."""

    home: pathlib.Path
    """Flower's home: config, state and logs."""
    address: str
    """HOST:PORT of the SuperLink."""
    ca: pathlib.Path | None = None
    """Certificate of the authority that signed the SuperLink's; None without TLS."""
    modules: Sequence[pathlib.Path] = field(default=())
    """Folders of user modules that the apps import."""
    app: str = "offbeat.flower.app"
    """The Flower app to run: a module with `server` and `client`."""
    config: RunConfig = field(default_factory=lambda: APP_CONFIG)
    """Defaults of the app's run config."""

    def prepare(self) -> None:
        """Write the app and the config file that `flwr` reads."""
        from tomli_w import dumps

        security: dict[str, Any] = {"insecure": True} if self.ca is None else {"root-certificates": str(self.ca)}
        (self.home / "app").mkdir(parents=True, exist_ok=True)
        text = _APP.format(version=__version__, module=self.app) + dumps(self.config)
        (self.home / "app" / "pyproject.toml").write_text(text, encoding="utf-8")
        config = {"superlink": {"default": _NAME, _NAME: {"address": self.address, **security}}}
        (self.home / "config.toml").write_text(dumps(config), encoding="utf-8")

    @property
    def tls(self) -> list[str]:
        """Command-line options with which a program connects to this SuperLink."""
        return ["--insecure"] if self.ca is None else ["--root-certificates", str(self.ca)]

    def submit(self, config: RunConfig) -> str:
        """Start a run of the app with this run config and return its id."""
        from tomli_w import dumps

        file = self.home / "run.toml"
        file.write_text(dumps(config), encoding="utf-8")
        return str(self._call("run", str(self.home / "app"), _NAME, "--run-config", str(file))["run-id"])

    def status(self, run: str) -> tuple[str, str]:
        """Return the status of a run and its details."""
        runs = self._call("list", _NAME, "--run-id", run)["runs"]
        if not runs:
            raise OffbeatError(f"the SuperLink at {self.address} does not know the run {run}")
        found = runs[0]
        return str(found["status"]), str(found.get("details") or found.get("status-details") or "")

    def stop(self, run: str) -> None:
        """Stop a run."""
        self._call("stop", run, _NAME)

    def register(self, key: pathlib.Path) -> None:
        """Register a node by its public key."""
        self._call("supernode", "register", str(key), _NAME)

    def _call(self, *arguments: str) -> dict[str, Any]:
        """Call `flwr` and return the JSON that it prints."""
        command = f"flwr {arguments[0]}"
        try:
            done = subprocess.run(
                [find_program("flwr"), *arguments, "--format", "json"], env=environment(self.home, self.modules),
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CALL_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise OffbeatError(
                f"`{command}` took more than {CALL_SECONDS:g} s; is the SuperLink at {self.address} running?"
            ) from None
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {"success": False, "error-message": done.stderr or done.stdout}
        if not answer.get("success"):
            raise OffbeatError(f"`{command}` failed: {str(answer.get('error-message', '')).strip()}")
        return answer
