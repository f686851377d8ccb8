"""A federation's server: Flower's SuperLink on this machine alone, and a gate for the nodes.

Its certificate for TLS is signed by an authority that signs nothing else.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Le
from pydantic import PositiveInt

from data_prep.base.errors import InputError, Words, no_file
from data_prep.base.files import naming_full_disk
from data_prep.base.progress import ready
from stforecast.federated.core.options import CheckedOptions
from stforecast.flower import supernode
from stforecast.flower.gate import check_closed, make_gate, other_addresses, tried


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
        (keys.certificate, _name(supernode.HOST), key.public_key(), False),
    ):
        uses = x509.KeyUsage(
            digital_signature=not authority,
            key_cert_sign=authority,
            crl_sign=authority,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        extensions: list[tuple[x509.ExtensionType, bool]] = [  # Each with whether it is critical.
            (x509.BasicConstraints(authority, None), True),
            (x509.SubjectKeyIdentifier.from_public_key(public), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False),
            (uses, True),
        ]
        if not authority:
            address = x509.IPAddress(ipaddress.ip_address(supernode.HOST))
            names = x509.SubjectAlternativeName([address, x509.DNSName("localhost")])
            extensions.append((names, False))
        certificate = (
            x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=days))
        )
        for extension, critical in extensions:
            certificate = certificate.add_extension(extension, critical)
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


log = logging.getLogger(__name__)

CONNECTION = "server"
"""Name of the SuperLink in Flower's configuration."""


@dataclass(frozen=True)
class FederationServer(CheckedOptions):
    """A federation's server.

    Attributes:
        folder: folder of the server, for its database, keys and settings of the command flwr, which
            only this user may enter.
        certificate: certificate for the name by which nodes know the server.
        private_key: private key of the certificate.
        host: address of this machine at which nodes join; the default is all of them.
        port: port at which nodes join.
        unsafe_open: let whoever reaches the port also list, register and run: any code on this
            server.
    """

    folder: Path
    certificate: Path
    private_key: Path
    host: str = "0.0.0.0"
    port: Annotated[PositiveInt, Le(2**16 - 1)] = 8000
    unsafe_open: bool = False

    @property
    def home(self) -> Path:
        """Return Flower's home, with which the command `flwr` finds the SuperLink."""
        return self.folder.resolve() / "flower"

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        for path in (self.certificate, self.private_key):
            if not path.is_file():
                raise no_file(path, "certificate or key", "see docs/federation.md")
        os.umask(0o077)
        address = f"{supernode.HOST}:{supernode.free_port()}"
        with naming_full_disk(self.home):
            self.home.mkdir(parents=True, exist_ok=True)
            self.home.chmod(0o700)
            keys = make_keys(self.home / "keys", days=3650)
            # Where the command `flwr` finds the SuperLink.
            lines = [f'[superlink]\ndefault = "{CONNECTION}"\n[superlink.{CONNECTION}]']
            lines += [f"address = {json.dumps(address)}"]
            lines += [f"root-certificates = {json.dumps(str(keys.authority))}"]
            (self.home / "config.toml").write_text("\n".join(lines) + "\n")
        try:
            with supernode.signals_raise(), self._superlink(address, keys) as superlink:
                _wait_for(superlink, address)
                with self._gate(address, keys):
                    self._check(f"https://{address}")
                    code = superlink.wait()
        except supernode.Signalled as e:
            log.info("stopped by %s", e)
        else:
            raise InputError(f"the SuperLink ended (code {code}); see what it printed above")

    @contextlib.contextmanager
    def _superlink(self, address: str, keys: Keys) -> Iterator[subprocess.Popen[bytes]]:
        host, port = address.split(":")
        options: dict[str, str | Path] = {
            "--host": host,
            "--port": port,
            "--ssl-certfile": keys.certificate,
            "--ssl-keyfile": keys.private,
            "--ssl-ca-certfile": keys.authority,
            "--database": self.home / "superlink.db",
        }
        switches = ("--enable-supernode-auth", "--disable-runtime-dependency-installation")
        words = [word for option in options.items() for word in option]
        process = supernode.start_program(
            [supernode.find_program("flower-superlink"), *words, *switches],
            env=supernode.environment() | {"FLWR_HOME": str(self.home)},
        )
        try:
            yield process
        finally:
            supernode.stop_all_of(process)

    @contextlib.contextmanager
    def _gate(self, address: str, keys: Keys) -> Iterator[None]:
        """Listen for nodes within the context."""
        from stforecast.service.port import make_server

        try:
            gate = make_server(
                make_gate(address, keys.authority, everything=self.unsafe_open),
                2**26,  # Bytes of the largest message; Flower sends tensors in parts of 5 MiB.
                ssl_certfile=self.certificate,
                ssl_keyfile=str(self.private_key),
            )
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            listener = socket.create_server((self.host, self.port), family=family)
        except OSError as e:
            raise InputError(
                f"{self.host}:{self.port} with {self.certificate}: nobody can join ({e.strerror}); "
                "give a free port, and a certificate in PEM with its own key"
            ) from e
        thread = threading.Thread(target=gate.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield
        finally:
            gate.should_exit = True
            thread.join(5)
            listener.close()

    def _check(self, superlink: str) -> None:
        """Try what strangers can do, and say what is ready."""
        where = f"{self.host}:{self.port}"
        if self.unsafe_open:
            log.warning(
                "%s: whoever reaches %s can list, register and run anything, which is to run any "
                "code on this server; keep strangers off by a firewall",
                Words("{unsafe_open}"),
                where,
            )
        else:
            own = f"[{self.host}]" if ":" in self.host else self.host
            hosts = (
                [supernode.HOST, *other_addresses()] if self.host in ("0.0.0.0", "::") else [own]
            )
            check_closed(superlink, [f"https://{host}:{self.port}" for host in hosts])
            log.info("tried as a stranger: nobody can list runs or run an app at %s", where)
        log.info("for the command flwr on this machine: export FLWR_HOME=%s", self.home)
        log.info("nodes join at %s", where)
        ready()


def _wait_for(superlink: subprocess.Popen[bytes], address: str) -> None:
    """Wait until a SuperLink answers."""
    end = time.monotonic() + 120
    while superlink.poll() is None and time.monotonic() < end:
        if tried(f"https://{address}", run=False):
            return
        time.sleep(0.3)
    raise InputError("the SuperLink did not start; see what it printed above")
