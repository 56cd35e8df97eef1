"""A node that stays: Flower's SuperNode with its key, started again whenever it has died."""

from __future__ import annotations

import pathlib
import threading

from offbeat.deploy import bundle as files
from offbeat.deploy.bundle import ClientBundle
from offbeat.deploy.flower_cli import environment, program
from offbeat.deploy.processes import Program, Programs, free_ports
from offbeat.deploy.tell import RepeatLimiter, Tell

SOON = 10.0  # seconds before one that has been refused tries again
# The SuperLink takes a node to be there for 60 s after its last sign of life, and refuses another with its key.  Back
# the moment after, it would not be seen to have been away, and the job that died with it would be waited for.
AWAY = 65.0
LOOK_SECONDS = 0.5


def keep_node(
    bundle: ClientBundle, data: str | None, data_dir: pathlib.Path | None, interrupted: threading.Event, tell: Tell
) -> None:
    """Keep a node running until interrupted."""
    superlink, partition = bundle.settings()
    place = bundle.place.resolve()
    home, (port,) = place / "state", free_ports(1)
    config = f'data="{data}"' if data else f"partition-id={partition}"
    if data_dir is not None:
        config += f' data-dir="{data_dir.resolve()}"'
    command = [
        program("flower-supernode"), "--superlink", superlink, "--root-certificates", str(place / files.CA),
        "--auth-supernode-private-key", str(place / files.NODE_KEY), "--host", "127.0.0.1", "--port", str(port),
        "--node-config", config,
    ]  # fmt: skip
    said = RepeatLimiter(tell)
    with Programs() as programs:
        env = environment(home, [place, pathlib.Path.cwd()])
        node = programs.start(Program("SuperNode", command, env, home / "logs" / "supernode.log", _pause))
        tell(f"taking part at {superlink}; log: {node.log}")
        while not interrupted.wait(LOOK_SECONDS):
            if programs.look():
                said(f"the SuperNode has ended; it is started again. Its last words:\n{node.last_words()}")


def _pause(said: str) -> float:
    return AWAY if "SuperNode ID:" in said else SOON
