"""Keys of nodes for tests on one machine, made by `ssh-keygen` as docs/federation.md does it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from data_prep.base.errors import InputError


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a node's private and public key.

    Args:
        folder: created if it does not exist.
        name: name of the node.

    Raises:
        InputError: if there is no `ssh-keygen`, or it fails.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    private, public = folder / name, folder / f"{name}.pub"
    program = shutil.which("ssh-keygen")
    if program is None:
        raise InputError("ssh-keygen not found; install it (OpenSSH), as it makes the keys")
    words = ["-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", str(private)]
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"ssh-keygen failed: {' '.join(done.stderr.split())[-300:]}")
    return private, public
