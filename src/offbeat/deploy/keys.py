"""Certificates and keys: a certificate authority, the server's TLS certificate, and one key per node."""

from __future__ import annotations

import datetime
import ipaddress
import os
import pathlib
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 3650


@dataclass(frozen=True)
class Authority:
    """The certificate authority that signs the server's certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, name: str) -> Authority:
        """Create an authority with a new key and a self-signed certificate."""
        key = ec.generate_private_key(ec.SECP384R1())
        builder = _builder(name, name, key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(usage, critical=True)
        return cls(key, builder.sign(key, hashes.SHA384()))

    def certify(self, host: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        """Return a new key and its certificate for a server that is reached as `host` or on the loopback interface."""
        key = ec.generate_private_key(ec.SECP384R1())
        issuer = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        hosts = dict.fromkeys(_general_name(name) for name in (host, "localhost", "127.0.0.1"))
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _builder(host, str(issuer), key.public_key(), x509.BasicConstraints(ca=False, path_length=None))
            .add_extension(x509.SubjectAlternativeName(list(hosts)), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(authority, critical=False)
        )
        return key, builder.sign(self.key, hashes.SHA384())


def write_node_key(private: pathlib.Path, public: pathlib.Path) -> None:
    """Write a new key pair in the format of `ssh-keygen -t ecdsa -b 384`."""
    key = ec.generate_private_key(ec.SECP384R1())
    body = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_secret(private, body)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public.write_bytes(line + b"\n")


def write_key(path: pathlib.Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key as PEM, readable by this user only."""
    form = serialization.PrivateFormat.PKCS8
    write_secret(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def write_certificate(path: pathlib.Path, certificate: x509.Certificate) -> None:
    """Write a certificate as PEM."""
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_secret(path: pathlib.Path, body: bytes) -> None:
    """Write a new file that only this user can read from the moment it exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(body)


def _builder(
    subject: str, issuer: str, key: ec.EllipticCurvePublicKey, constraints: x509.BasicConstraints
) -> x509.CertificateBuilder:
    """Return a certificate with the fields that all certificates have."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(constraints, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
