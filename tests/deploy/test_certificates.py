"""The site's certificates do what TLS asks of them, and nothing more."""

from __future__ import annotations

import datetime
import ipaddress
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fedrbn.deploy.certificates import Issued, issue, make_authority, make_node_key, subject_names


@pytest.fixture(scope="module")
def authority() -> Issued:
    return make_authority("test authority")


def verified(server: Issued, authority: Issued, host: str) -> None:
    """Check a server's certificate as a strict client does; raises if it does not hold."""
    try:
        name: x509.DNSName | x509.IPAddress = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = x509.DNSName(host)
    root = x509.load_pem_x509_certificate(authority.certificate)
    verifier = PolicyBuilder().store(Store([root])).build_server_verifier(name)
    verifier.verify(x509.load_pem_x509_certificate(server.certificate), [])


@pytest.mark.parametrize("host", ["fed.example.org", "192.0.2.7", "localhost", "127.0.0.1", "::1"])
def test_server_certificate_holds_for_its_hosts_and_the_loopback(authority: Issued, host: str) -> None:
    verified(issue(authority, ["fed.example.org", "192.0.2.7"]), authority, host)


def test_server_certificate_does_not_hold_for_another_host(authority: Issued) -> None:
    with pytest.raises(VerificationError):
        verified(issue(authority, ["fed.example.org"]), authority, "other.example.org")


def test_certificate_of_another_authority_is_not_trusted(authority: Issued) -> None:
    stranger = make_authority("test authority")  # the same name, another key
    with pytest.raises(VerificationError):
        verified(issue(stranger, ["fed.example.org"]), authority, "fed.example.org")


def test_a_server_cannot_sign_certificates(authority: Issued) -> None:
    server = issue(authority, ["fed.example.org"])
    forged = issue(server, ["bank.example.org"])
    root = x509.load_pem_x509_certificate(authority.certificate)
    verifier = PolicyBuilder().store(Store([root])).build_server_verifier(x509.DNSName("bank.example.org"))
    between = x509.load_pem_x509_certificate(server.certificate)
    with pytest.raises(VerificationError):
        verifier.verify(x509.load_pem_x509_certificate(forged.certificate), [between])


def test_expired_certificate_is_refused(authority: Issued) -> None:
    server = issue(authority, ["fed.example.org"], days=1)
    certificate = x509.load_pem_x509_certificate(server.certificate)
    root = x509.load_pem_x509_certificate(authority.certificate)
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    verifier = PolicyBuilder().store(Store([root])).time(later).build_server_verifier(x509.DNSName("fed.example.org"))
    with pytest.raises(VerificationError):
        verifier.verify(certificate, [])


def test_python_loads_certificate_and_key_for_tls(authority: Issued, tmp_path) -> None:  # type: ignore[no-untyped-def]
    server = issue(authority, ["fed.example.org"])
    (tmp_path / "server.crt").write_bytes(server.certificate)
    (tmp_path / "server.key").write_bytes(server.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")  # raises if they do not belong together


def test_names_are_kept_once_and_in_order() -> None:
    names = [str(name.value) for name in subject_names(["b.example.org", "localhost", "b.example.org", "192.0.2.7"])]
    assert names == ["b.example.org", "localhost", "192.0.2.7", "127.0.0.1", "::1"]


@pytest.mark.parametrize(
    "host", ["", "https://fed.example.org", "fed.example.org:9092", "-a.org", "a..b", "ä.org", "a b"]
)
def test_what_is_not_a_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="expected a DNS name"):
        subject_names([host])


def test_node_key_is_p384_and_its_halves_belong_together() -> None:
    pair = make_node_key()
    private, public = load_ssh_private_key(pair.private, None), load_ssh_public_key(pair.public)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key().public_numbers() == public.public_numbers()
    assert make_node_key().public != pair.public


def test_printing_does_not_show_private_keys(authority: Issued) -> None:
    assert "PRIVATE" not in repr(authority) + repr(make_node_key())
