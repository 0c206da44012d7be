"""Certificates and keys of a site: its own certificate authority, the server's certificate, one ECDSA key per node.

Nodes trust the server because the site's authority signed its certificate (TLS). The server trusts a node because the
node signs every request with a key whose public half was registered. All keys are on the NIST curve P-384, the format
that Flower reads: PKCS#8 for TLS, OpenSSH for nodes.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedrbn.errors import DeployError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names in every server certificate: the server's own processes use them to connect."""
AUTHORITY_DAYS = 3650
SERVER_DAYS = 825


@dataclass(frozen=True)
class Issued:
    """A certificate and its private key, both PEM. The key is not part of the repr."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True)
class KeyPair:
    """A node's key: the private half in OpenSSH's format, the public half as one line of text."""

    public: bytes
    private: bytes = field(repr=False)


def make_authority(name: str, days: int = AUTHORITY_DAYS) -> Issued:
    """A new authority: it signs its own certificate and may sign server certificates, but no further authorities."""
    key = _new_key()
    subject = _subject(name)
    builder = (
        _builder(subject, subject, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _signed(builder, key, key)


def issue(authority: Issued, hosts: Iterable[str], days: float = SERVER_DAYS) -> Issued:
    """A server certificate for these host names and addresses, and for the loopback address."""
    names = subject_names(hosts)
    parent = x509.load_pem_x509_certificate(authority.certificate)
    signer = load_pem_private_key(authority.key, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise DeployError(f"got an authority with a {type(signer).__name__}; expected an elliptic-curve key.")
    key = _new_key()
    builder = (
        _builder(_subject(str(names[0].value)), parent.subject, key, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _signed(builder, key, signer)


def make_node_key() -> KeyPair:
    """A new key for a node; the server registers the public half."""
    key = _new_key()
    return KeyPair(
        public=key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n",
        private=key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
    )


def subject_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Host names and IP addresses in the form of a certificate, each once, the loopback last."""
    return [_general_name(host) for host in dict.fromkeys((*hosts, *LOOPBACK))]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        labels = host.split(".")
        if len(host) > 253 or not all(_is_label(label) for label in labels):
            raise DeployError(
                f"got host {host!r}; expected a DNS name such as server.example.org, or an IP address. "
                "Leave out https:// and the port."
            ) from None
        return x509.DNSName(host)


def _is_label(text: str) -> bool:
    inner = text.replace("-", "a")
    return 0 < len(text) <= 63 and inner.isascii() and inner.isalnum() and text[0] != "-" != text[-1]


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Nodes whose clocks are a few minutes behind must not see the certificate as "not yet valid".
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> Issued:
    return Issued(
        certificate=builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
