"""Certificates and keys for a federation on one machine, made by `openssl`; for trials and tests.

A real federation takes its certificate from an authority that its nodes trust; see
docs/federation.md.
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
        authority: certificate of the authority, which nodes and people must have.
        certificate: of the SuperLink, for 127.0.0.1.
        private: its key.
    """

    authority: Path
    certificate: Path
    private: Path


def make_keys(folder: Path, days: int = 2) -> Keys:
    """Make an authority and a SuperLink's certificate for 127.0.0.1.

    Args:
        folder: made if it is not there.
        days: how long they hold.

    Raises:
        InputError: if there is no `openssl`.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    key = ["-newkey", "ec", "-pkeyopt", CURVE, "-nodes", "-days", str(days)]
    ca, ca_key = folder / "ca.crt", folder / "ca.key"
    server, private = folder / "server.pem", folder / "server.key"
    _openssl(
        "req", "-x509", *key, "-subj", "/CN=trial authority", "-keyout", ca_key, "-out", ca,
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    _openssl(
        "req", "-x509", *key, "-subj", "/CN=127.0.0.1", "-keyout", private, "-out", server,
        "-CA", ca, "-CAkey", ca_key, "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
        "-addext", "basicConstraints=critical,CA:FALSE",
    )  # fmt: skip
    return Keys(ca, server, private)


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """A node's private and public key.

    Args:
        folder: made if it is not there.
        name: of the node.

    Raises:
        InputError: if there is no `openssl`.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    private, public = folder / name, folder / f"{name}.pub"
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", CURVE, "-out", private)
    _openssl("pkey", "-in", private, "-pubout", "-out", public)
    return private, public


def _openssl(*args: object) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise InputError("no openssl here, which makes the certificates; install it")
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"openssl {args[0]} failed: {' '.join(done.stderr.split())[-300:]}")
