"""Tests of offbeat.deploy.bundle and keys, and of the commands that use bundles."""

from __future__ import annotations

import pathlib
import ssl
import stat
import tomllib

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from offbeat.cli import main
from offbeat.deploy.bundle import ClientBundle, ServerBundle, init
from offbeat.errors import ConfigError
from offbeat.runs.config import parse


@pytest.fixture
def deployment(tmp_path: pathlib.Path) -> pathlib.Path:
    init(tmp_path / "dep", "fed.example.org", 9443, 2)
    return tmp_path / "dep"


def test_every_machine_gets_a_complete_bundle(deployment: pathlib.Path) -> None:
    server = ServerBundle(deployment / "server")
    assert [key.name for key in server.node_keys] == ["node-0.pub", "node-1.pub"]
    assert ClientBundle(deployment / "client-1").settings() == ("fed.example.org:9443", 1)
    experiment = parse(tomllib.loads((deployment / "server" / "experiment.toml").read_text()))
    assert experiment.data.clients == 2
    proxy = (deployment / "server" / "nginx.conf").read_text()
    assert "listen 9443 ssl" in proxy
    assert proxy.count("proxy_pass") == 1, "only the Fleet API is forwarded"


def test_private_keys_are_readable_by_their_owner_only(deployment: pathlib.Path) -> None:
    keys = sorted(path.relative_to(deployment).as_posix() for path in deployment.rglob("*.key"))
    assert keys == ["ca.key", "client-0/node.key", "client-1/node.key", "server/server.key"]
    for name in (*keys, "server/superexec.secret"):
        assert stat.S_IMODE((deployment / name).stat().st_mode) == 0o600


def test_node_keys_are_matching_p384_keys(deployment: pathlib.Path) -> None:
    private = load_ssh_private_key((deployment / "client-0" / "node.key").read_bytes(), None)
    public = load_ssh_public_key((deployment / "server" / "nodes" / "node-0.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public


def test_the_certificate_is_valid_for_the_host_and_the_loopback_interface(deployment: pathlib.Path) -> None:
    authority = x509.load_pem_x509_certificate((deployment / "client-0" / "ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((deployment / "server" / "server.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    context = ssl.create_default_context(cafile=str(deployment / "client-0" / "ca.crt"))
    context.load_cert_chain(deployment / "server" / "server.crt", deployment / "server" / "server.key")


def test_other_folders_are_refused(deployment: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="is not empty"):
        init(deployment, "fed.example.org", 9443, 2)
    with pytest.raises(ConfigError, match=r"is not a server bundle: server\.crt"):
        ServerBundle(deployment / "client-0")


def test_commands_without_flower_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for command in (["deploy", "local", "x.toml"], ["replay", "run"]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2
        assert "pip install 'offbeat[flower]'" in result.output


def test_a_listen_address_needs_a_port(deployment: pathlib.Path) -> None:
    result = CliRunner().invoke(main, ["deploy", "server", str(deployment / "server"), "--listen", "localhost"])
    assert result.exit_code == 2
    assert "expected HOST:PORT" in result.output
