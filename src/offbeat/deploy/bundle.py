"""Bundles: the folders that `offbeat deploy init` writes, one per machine of a deployment.

DIR/ca.key     the key that signs certificates; not needed by any machine, to be stored separately
DIR/server/    for the server: certificate, key, public keys of the nodes, experiment.toml
DIR/client-i/  for node i: certificate of the authority, key of the node, address of the server
"""

from __future__ import annotations

import pathlib
import secrets
import tomllib
from dataclasses import dataclass
from importlib import resources
from string import Template

from offbeat.deploy import keys
from offbeat.errors import ConfigError, OffbeatError

CA, CERTIFICATE, KEY, SECRET = "ca.crt", "server.crt", "server.key", "superexec.secret"
NODES, NODE_KEY, CLIENT, EXPERIMENT = "nodes", "node.key", "client.toml", "experiment.toml"
LISTEN_PORT = 8000  # of the SuperLink on the loopback interface, behind the proxy
SERVER_FILES = (EXPERIMENT, "README.md", "docker-compose.yml", "nginx.conf", "offbeat-server.service")
CLIENT_FILES = (CLIENT, "README.md", "docker-compose.yml", "offbeat-client.service")


def init(folder: pathlib.Path, host: str, port: int, nodes: int) -> None:
    """Write the bundles of a new deployment.

    Args:
        folder: A new or empty folder.
        host: Name or address under which clients reach the server.
        port: Port under which clients reach the server.
        nodes: Number of client bundles.

    Raises:
        ConfigError: The folder is not empty.
        OffbeatError: The folder cannot be written.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose a new folder", key="DIR")
    values = {"host": host, "port": str(port), "nodes": str(nodes), "listen": str(LISTEN_PORT)}
    server = folder / "server"
    try:
        (server / NODES).mkdir(parents=True)
        authority = keys.Authority.create(f"offbeat authority of {host}")
        keys.write_key(folder / "ca.key", authority.key)
        key, certificate = authority.certify(host)
        keys.write_key(server / KEY, key)
        keys.write_certificate(server / CERTIFICATE, certificate)
        keys.write_certificate(server / CA, authority.certificate)
        keys.write_secret(server / SECRET, secrets.token_bytes(32))
        _write_templates(server, "server", SERVER_FILES, values)
        for node in range(nodes):
            client = folder / f"client-{node}"
            client.mkdir()
            keys.write_node_key(client / NODE_KEY, server / NODES / f"node-{node}.pub")
            keys.write_certificate(client / CA, authority.certificate)
            _write_templates(client, "client", CLIENT_FILES, {**values, "node": str(node)})
    except OSError as error:
        raise OffbeatError(f"cannot write to {folder}: {error.strerror}") from error


def _write_templates(folder: pathlib.Path, kind: str, files: tuple[str, ...], values: dict[str, str]) -> None:
    """Write the templates of one kind of bundle with the values filled in."""
    for file in files:
        text = resources.files("offbeat.deploy").joinpath("templates", kind, file).read_text(encoding="utf-8")
        (folder / file).write_text(Template(text).substitute(values), encoding="utf-8")


@dataclass(frozen=True)
class ServerBundle:
    """The server's bundle; incomplete folders are refused."""

    folder: pathlib.Path

    def __post_init__(self) -> None:
        _check_complete(self.folder, "server", (CA, CERTIFICATE, KEY, SECRET, EXPERIMENT, NODES))

    @property
    def node_keys(self) -> list[pathlib.Path]:
        """Files with the public keys of the nodes that may connect."""
        return sorted((self.folder / NODES).glob("*.pub"))


@dataclass(frozen=True)
class ClientBundle:
    """A node's bundle; incomplete folders are refused."""

    folder: pathlib.Path

    def __post_init__(self) -> None:
        _check_complete(self.folder, "client", (CA, NODE_KEY, CLIENT))

    def settings(self) -> tuple[str, int]:
        """Return the address of the SuperLink and the node's part of the experiment's data."""
        file = self.folder / CLIENT
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            return str(table["superlink"]), int(table["partition"])
        except KeyError as error:
            raise ConfigError(f"{file} does not define {error.args[0]}; it needs superlink and partition") from error
        except ValueError as error:
            raise ConfigError(f"{file} is not valid: {error}") from error


def _check_complete(folder: pathlib.Path, kind: str, files: tuple[str, ...]) -> None:
    missing = [name for name in files if not (folder / name).exists()]
    if missing:
        raise ConfigError(
            f"{folder} is not a {kind} bundle: {', '.join(missing)} not found; create one with `offbeat deploy init`"
        )
