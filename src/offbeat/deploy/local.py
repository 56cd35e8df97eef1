"""`offbeat deploy local`: a whole federation on this machine."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import threading

from offbeat.deploy.federation import Federation
from offbeat.deploy.flower_cli import Link
from offbeat.deploy.flower_programs import LOOPBACK
from offbeat.deploy.processes import Programs, free_ports
from offbeat.deploy.run_monitor import RunMonitor
from offbeat.deploy.submission import RunRequest
from offbeat.deploy.supervisor import Report, Supervisor
from offbeat.runs.result import Watch

POLL_SECONDS = 0.2


def run_local(request: RunRequest, clients: int, interrupted: threading.Event, watch: Watch, report: Report) -> bool:
    """Run an experiment with one node per client and end all processes afterwards, whatever happens.

    Args:
        request: The run.
        clients: Number of nodes.
        interrupted: Ends the run early when set; its folder can be resumed.
        watch: Receives the progress.
        report: Receives messages for the operator.

    Returns:
        True if the run is finished, False if it was interrupted.

    Raises:
        OffbeatError: The SuperLink or the server app failed, or all clients failed before the first update.
    """
    with tempfile.TemporaryDirectory(prefix="offbeat-", ignore_cleanup_errors=True) as folder:
        home = pathlib.Path(folder)
        try:
            with Programs() as programs:
                federation = _start(home, programs, request, clients)
                run = RunMonitor(federation.link, request, federation.superexec, watch, report, clients=clients)
                return Supervisor(programs, interrupted, report, POLL_SECONDS).run(run)
        finally:
            if request.out.is_dir() and (home / "logs").is_dir():
                shutil.copytree(home / "logs", request.out / "logs", dirs_exist_ok=True)


def _start(home: pathlib.Path, programs: Programs, request: RunRequest, clients: int) -> Federation:
    port, *ports = free_ports(1 + clients)
    link = Link(home, f"{LOOPBACK}:{port}", modules=[request.modules] if request.modules else [])
    data_dir = f' data-dir="{request.data_dir.resolve()}"' if request.data_dir is not None else ""
    return Federation(link, programs, ports, [f"partition-id={client}{data_dir}" for client in range(clients)])
