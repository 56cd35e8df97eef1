"""Bundles, certificates and keys."""

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
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    init(tmp_path / "dep", "fed.example.org", 9443, 2)
    return tmp_path / "dep"


def test_every_machine_has_what_it_needs(place: pathlib.Path) -> None:
    server = ServerBundle(place / "server")
    assert [key.name for key in server.node_keys] == ["node-0.pub", "node-1.pub"]
    assert ClientBundle(place / "client-1").settings() == ("fed.example.org:9443", 1)
    experiment = parse(tomllib.loads((place / "server" / "experiment.toml").read_text()))
    assert experiment.data.clients == 2
    proxy = (place / "server" / "nginx.conf").read_text()
    assert "listen 9443 ssl" in proxy
    assert proxy.count("proxy_pass") == 1, "the Fleet API and nothing else"


def test_private_keys_are_private_and_where_they_belong(place: pathlib.Path) -> None:
    keys = sorted(path.relative_to(place).as_posix() for path in place.rglob("*.key"))
    assert keys == ["ca.key", "client-0/node.key", "client-1/node.key", "server/server.key"]
    for name in (*keys, "server/superexec.secret"):
        assert stat.S_IMODE((place / name).stat().st_mode) == 0o600


def test_node_keys_are_p384_and_match(place: pathlib.Path) -> None:
    private = load_ssh_private_key((place / "client-0" / "node.key").read_bytes(), None)
    public = load_ssh_public_key((place / "server" / "nodes" / "node-0.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public


def test_the_certificate_is_signed_for_the_name_and_for_this_machine(place: pathlib.Path) -> None:
    authority = x509.load_pem_x509_certificate((place / "client-0" / "ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((place / "server" / "server.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    context = ssl.create_default_context(cafile=str(place / "client-0" / "ca.crt"))
    context.load_cert_chain(place / "server" / "server.crt", place / "server" / "server.key")


def test_a_folder_that_is_something_else_is_refused(place: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="is not empty"):
        init(place, "fed.example.org", 9443, 2)
    with pytest.raises(ConfigError, match=r"no server bundle .* server.crt"):
        ServerBundle(place / "client-0")


def test_without_flower_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for command in (["deploy", "local", "x.toml"], ["replay", "run"]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 2
        assert "pip install 'offbeat[flower]'" in result.output


def test_an_address_without_a_port_is_refused(place: pathlib.Path) -> None:
    result = CliRunner().invoke(main, ["deploy", "server", str(place / "server"), "--listen", "localhost"])
    assert result.exit_code == 2
    assert "expected HOST:PORT" in result.output
