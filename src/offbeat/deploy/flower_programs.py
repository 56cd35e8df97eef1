"""Start Flower's SuperLink, SuperExec and SuperNodes, each with its log below the SuperLink's home."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from offbeat.deploy.flower_cli import Link, environment, find_program
from offbeat.deploy.processes import Program, Programs, wait_for_port

LOOPBACK = "127.0.0.1"
START_SECONDS = 120.0  # limit for the SuperLink to listen


@dataclass(frozen=True)
class FlowerPrograms:
    """Starts Flower's programs for one SuperLink."""

    link: Link
    """The SuperLink that they are, or connect to."""
    programs: Programs
    """Where the programs are added."""

    def start_superlink(self, host: str, *options: str, restart: bool) -> Program:
        """Start the SuperLink and wait until it listens.

        Server apps run below a separate SuperExec (`--isolation process`): a SuperLink that starts its own puts it
        into a session where it is not found again, and takes the server app with it when it dies.

        Args:
            host: Interface to listen on; the port is that of the link.
            options: Security and storage.
            restart: Whether the SuperLink can be restarted: it can if it keeps its state in a database.
        """
        connect_host, _, port = self.link.address.rpartition(":")
        superlink = self._start(
            "SuperLink", "flower-superlink", "--host", host, "--port", port, *options,
            "--isolation", "process", "--disable-runtime-dependency-installation", restart=restart,
        )  # fmt: skip
        wait_for_port(superlink, connect_host, int(port), START_SECONDS)
        return superlink

    def start_superexec(self, *options: str) -> Program:
        """Start the SuperExec, whose process group contains the server apps."""
        address = self.link.address
        return self._start("SuperExec", "flower-superexec", *self.link.tls, "--runtime-api-address", address, *options)

    def start_supernode(
        self,
        name: str,
        port: int,
        config: str,
        *options: str,
        env: Mapping[str, str] | None = None,
        restart_delay: Callable[[str], float] | None = None,
    ) -> Program:
        """Start a SuperNode.

        Args:
            name: Name for the operator and of the log.
            port: Port of the loopback interface for its client apps.
            config: The node config.
            options: Authentication.
            env: Additional environment variables.
            restart_delay: See `Program`.
        """
        return self._start(
            name, "flower-supernode", *self.link.tls, "--superlink", self.link.address, *options,
            "--host", LOOPBACK, "--port", str(port), "--node-config", config, env=env, restart_delay=restart_delay,
        )  # fmt: skip

    def _start(
        self,
        name: str,
        command: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        restart: bool = True,
        restart_delay: Callable[[str], float] | None = None,
    ) -> Program:
        home = self.link.home
        program = Program(
            name,
            [find_program(command), *arguments],
            {**environment(home, self.link.modules), **(env or {})},
            home / "logs" / f"{name.lower().replace(' ', '-')}.log",
            restart_delay=restart_delay,
            restart=restart,
        )
        return self.programs.start(program)
