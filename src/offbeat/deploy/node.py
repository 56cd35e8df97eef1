"""`offbeat deploy client`: a SuperNode with its key, restarted whenever it exits."""

from __future__ import annotations

import pathlib
import threading

from offbeat.deploy import bundle as files
from offbeat.deploy.bundle import ClientBundle
from offbeat.deploy.flower_cli import Link
from offbeat.deploy.flower_programs import FlowerPrograms
from offbeat.deploy.processes import Programs, free_ports
from offbeat.deploy.supervisor import RepeatLimiter, Report, Supervisor

REFUSED_DELAY = 10.0  # seconds before a SuperNode that was refused connects again
# The SuperLink considers a node online for up to 60 s after its last heartbeat, and reports the jobs that died with it
# as lost only while it is offline. If a node were offline too briefly to be noticed, the server would wait for such a
# job until the trip timeout. So it stays offline for at least half a minute, in which the server looks every 2 s.
LOST_DELAY = 90.0


def run_node(
    bundle: ClientBundle, data: str | None, data_dir: pathlib.Path | None, interrupted: threading.Event, report: Report
) -> None:
    """Keep a node running until interrupted.

    Args:
        bundle: Key of the node and address of the server.
        data: `module:function` that returns the node's data. None: the node's part of the experiment's data.
        data_dir: Folder of downloaded data.
        interrupted: Ends the node when set.
        report: Receives messages for the operator.
    """
    superlink, partition = bundle.settings()
    folder = bundle.folder.resolve()
    link = Link(folder / "state", superlink, folder / files.CA, [folder, pathlib.Path.cwd()])
    config = f'data="{data}"' if data else f"partition-id={partition}"
    if data_dir is not None:
        config += f' data-dir="{data_dir.resolve()}"'
    (port,) = free_ports(1)
    key = str(folder / files.NODE_KEY)
    with Programs() as programs:
        node = FlowerPrograms(link, programs).start_supernode(
            "SuperNode", port, config, "--auth-supernode-private-key", key, restart_delay=_restart_delay
        )
        report(f"connecting to {superlink}; log: {node.log}")
        Supervisor(programs, interrupted, RepeatLimiter(report)).run()


def _restart_delay(output: str) -> float:
    """Return a long delay for a SuperNode that was connected, and a short one for a SuperNode that was refused."""
    return LOST_DELAY if "SuperNode ID:" in output else REFUSED_DELAY
