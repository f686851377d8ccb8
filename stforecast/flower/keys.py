"""A certificate for TLS on this machine, signed by an authority that signs nothing else."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stforecast.flower.supernode import HOST


@dataclass(frozen=True)
class Keys:
    """Files of a SuperLink with TLS for 127.0.0.1; all others need the authority's certificate."""

    authority: Path
    certificate: Path
    private: Path


def make_keys(folder: Path, days: int = 2) -> Keys:
    """Create an authority, whose key is not kept, and a SuperLink's certificate for 127.0.0.1."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = Keys(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    ca_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    issuer = _name("stforecast authority of one machine")
    for path, subject, public, authority in (
        (keys.authority, issuer, ca_key.public_key(), True),
        (keys.certificate, _name(HOST), key.public_key(), False),
    ):
        certificate = (
            x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.KeyUsage(
                    digital_signature=not authority, content_commitment=False,
                    key_encipherment=False, data_encipherment=False, key_agreement=False,
                    key_cert_sign=authority, crl_sign=authority, encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )  # fmt: skip
        if not authority:
            names = [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
            certificate = certificate.add_extension(
                x509.SubjectAlternativeName(names), critical=False
            )
        signed = certificate.sign(ca_key, hashes.SHA384())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    keys.private.touch(mode=0o600)
    keys.private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return keys


def _name(text: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
