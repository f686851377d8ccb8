"""Certificates and keys for tests on one machine, made by `openssl` and `ssh-keygen`.

A real federation uses a certificate of an authority that its nodes trust; see docs/federation.md.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import InputError

CURVE = "ec_paramgen_curve:P-384"


@dataclass(frozen=True)
class Keys:
    """Files of a SuperLink with TLS.

    Attributes:
        authority: certificate of the authority, needed by nodes and users.
        certificate: certificate of the SuperLink, for 127.0.0.1.
        private: its private key.
    """

    authority: Path
    certificate: Path
    private: Path


def make_keys(folder: Path, days: int = 2) -> Keys:
    """Create an authority and a SuperLink's certificate for 127.0.0.1.

    Args:
        folder: created if it does not exist.
        days: validity in days.

    Raises:
        InputError: if there is no `openssl`.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key = folder / "ca.crt", folder / "ca.key"
    server, private = folder / "server.pem", folder / "server.key"
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", CURVE, "-nodes", "-days", days]
    _do(
        "openssl", *new, "-subj", "/CN=trial authority", "-keyout", ca_key, "-out", ca,
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    _do(
        "openssl", *new, "-subj", "/CN=127.0.0.1", "-keyout", private, "-out", server,
        "-CA", ca, "-CAkey", ca_key, "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
        "-addext", "basicConstraints=critical,CA:FALSE",
    )  # fmt: skip
    return Keys(ca, server, private)


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a node's private and public key.

    Args:
        folder: created if it does not exist.
        name: name of the node.

    Raises:
        InputError: if there is no `ssh-keygen`.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    private, public = folder / name, folder / f"{name}.pub"
    _do("ssh-keygen", "-q", "-t", "ecdsa", "-b", 384, "-N", "", "-C", name, "-f", private)
    return private, public


def _do(name: str, *args: object) -> None:
    program = shutil.which(name)
    if program is None:
        raise InputError(f"{name} not found; install it, as it makes the certificates or keys")
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{name} {args[0]} failed: {' '.join(done.stderr.split())[-300:]}")
