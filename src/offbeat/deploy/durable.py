"""`offbeat deploy server`: a server that survives the death of any of its programs.

The SuperLink keeps its state in a database and the server app runs next to it, below a SuperExec, so each can be
restarted alone. A server app that dies is submitted as a new run, which resumes from the checkpoint in the run folder.
"""

from __future__ import annotations

import json
import threading

from offbeat.deploy import bundle as files
from offbeat.deploy.bundle import ServerBundle
from offbeat.deploy.flower_cli import Link
from offbeat.deploy.flower_programs import LOOPBACK, FlowerPrograms
from offbeat.deploy.processes import Program, Programs
from offbeat.deploy.run_monitor import RunMonitor
from offbeat.deploy.submission import RunRequest
from offbeat.deploy.supervisor import Report, Supervisor
from offbeat.files import write_json
from offbeat.runs.result import Watch

MAX_FAILURES = 5  # of the server app without a new version in between


def run_server(
    bundle: ServerBundle,
    listen: tuple[str, int],
    request: RunRequest,
    interrupted: threading.Event,
    watch: Watch,
    report: Report,
) -> bool:
    """Run the experiment of a server bundle to its end.

    Args:
        bundle: Certificate, keys and the nodes that may connect.
        listen: Host and port of the SuperLink.
        request: The run.
        interrupted: Ends the run early when set; it can be resumed.
        watch: Receives the progress.
        report: Receives messages for the operator.

    Returns:
        True if the run is finished, False if it was interrupted.

    Raises:
        OffbeatError: The server app failed repeatedly without a new version.
    """
    (host, port), folder = listen, bundle.folder.resolve()
    address = f"{LOOPBACK if host == '0.0.0.0' else host}:{port}"
    link = Link(folder / "state", address, folder / files.CA, [folder])
    with Programs() as programs:
        superexec = _start(bundle, link, host, programs)
        run = RunMonitor(link, request, superexec, watch, report, max_failures=MAX_FAILURES)
        return Supervisor(programs, interrupted, report).run(run)


def _start(bundle: ServerBundle, link: Link, host: str, programs: Programs) -> Program:
    """Start the SuperLink with TLS, node authentication and a database; register the nodes; start the SuperExec."""
    folder, flower = bundle.folder.resolve(), FlowerPrograms(link, programs)
    link.prepare()
    secret = ["--superexec-auth-secret-file", str(folder / files.SECRET)]
    flower.start_superlink(
        host, "--ssl-ca-certfile", str(folder / files.CA), "--ssl-certfile", str(folder / files.CERTIFICATE),
        "--ssl-keyfile", str(folder / files.KEY), "--enable-supernode-auth",
        "--database", str(link.home / "superlink.db"), *secret, restart=True,
    )  # fmt: skip
    _register_nodes(bundle, link)
    return flower.start_superexec(*secret)


def _register_nodes(bundle: ServerBundle, link: Link) -> None:
    """Register the node keys of the bundle that are not in the SuperLink's database yet."""
    file = link.home / "registered.json"
    registered = set(json.loads(file.read_text(encoding="utf-8"))["keys"]) if file.is_file() else set()
    for path in bundle.node_keys:
        key = path.read_text(encoding="utf-8").strip()
        if key not in registered:
            link.register(path)
            registered.add(key)
            write_json(file, {"keys": sorted(registered)})
