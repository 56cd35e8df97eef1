"""What each machine of a deployment is given: `offbeat deploy init` writes it.

DIR/ca.key     signs certificates; needed no more, to be kept apart
DIR/server/    for the server: certificate, key, the nodes' public keys, experiment.toml
DIR/client-i/  for node i: the authority's certificate, the node's key, where the server is
"""

from __future__ import annotations

import pathlib
import secrets
from dataclasses import dataclass
from importlib import resources
from string import Template

from offbeat.deploy import keys
from offbeat.errors import ConfigError, OffbeatError

CA, CERTIFICATE, KEY, SECRET = "ca.crt", "server.crt", "server.key", "superexec.secret"
NODES, NODE_KEY, CLIENT, EXPERIMENT = "nodes", "node.key", "client.toml", "experiment.toml"
LISTEN_PORT = 8000  # of the SuperLink on the loopback, behind the proxy


def init(place: pathlib.Path, host: str, port: int, nodes: int) -> None:
    """Write all bundles into a new folder."""
    if place.exists() and any(place.iterdir()):
        raise ConfigError(f"{place} exists and is not empty", key="DIR")
    words = {"host": host, "port": str(port), "nodes": str(nodes), "listen": str(LISTEN_PORT)}
    server = place / "server"
    try:
        (server / NODES).mkdir(parents=True)
        authority = keys.Authority.new(f"offbeat authority of {host}")
        keys.write_key(place / "ca.key", authority.key)
        key, certificate = authority.certify(host)
        keys.write_key(server / KEY, key)
        keys.write_certificate(server / CERTIFICATE, certificate)
        keys.write_certificate(server / CA, authority.certificate)
        keys.write_secret(server / SECRET, secrets.token_bytes(32))
        for file in (EXPERIMENT, "README.md", "docker-compose.yml", "nginx.conf", "offbeat-server.service"):
            (server / file).write_text(_filled(f"server/{file}", words), encoding="utf-8")
        for node in range(nodes):
            client = place / f"client-{node}"
            client.mkdir()
            keys.node_key(client / NODE_KEY, server / NODES / f"node-{node}.pub")
            keys.write_certificate(client / CA, authority.certificate)
            for file in (CLIENT, "README.md", "docker-compose.yml", "offbeat-client.service"):
                filled = _filled(f"client/{file}", {**words, "node": str(node)})
                (client / file).write_text(filled, encoding="utf-8")
    except OSError as error:
        raise OffbeatError(f"cannot write into {place}: {error.strerror}") from error


def _filled(name: str, words: dict[str, str]) -> str:
    text = resources.files("offbeat.deploy").joinpath("templates", *name.split("/")).read_text(encoding="utf-8")
    return Template(text).substitute(words)


@dataclass(frozen=True)
class ServerBundle:
    """The server's folder, checked."""

    place: pathlib.Path

    def __post_init__(self) -> None:
        _complete(self.place, "server", (CA, CERTIFICATE, KEY, SECRET, EXPERIMENT, NODES))

    @property
    def node_keys(self) -> list[pathlib.Path]:
        return sorted((self.place / NODES).glob("*.pub"))


@dataclass(frozen=True)
class ClientBundle:
    """A node's folder, checked."""

    place: pathlib.Path

    def __post_init__(self) -> None:
        _complete(self.place, "client", (CA, NODE_KEY, CLIENT))

    def settings(self) -> tuple[str, int]:
        """Where the SuperLink is, and which part of the experiment's data is this node's."""
        import tomllib

        try:
            table = tomllib.loads((self.place / CLIENT).read_text(encoding="utf-8"))
            return str(table["superlink"]), int(table["partition"])
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{self.place / CLIENT}: {error}; expected superlink and partition") from error


def _complete(place: pathlib.Path, kind: str, files: tuple[str, ...]) -> None:
    missing = [name for name in files if not (place / name).exists()]
    if missing:
        raise ConfigError(f"{place} is no {kind} bundle of `offbeat deploy init`: {', '.join(missing)} not there")
