"""Settings of a node, and the command that starts its SuperNode."""

from __future__ import annotations

import json
import re
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path

from data_prep.base.errors import InputError, no_file, reading
from data_prep.cube import open_cube
from stforecast.flower.supernode import HOST, find_program

SECURE_ONLY = "require-secure-aggregation"
"""Key of whether a node takes part only in runs with secure aggregation."""

SHARE_TOTALS = "share-totals"
"""Key of whether a node adds to the totals of a federation."""

GROUPS = "groups"
"""Key of where a node names the groups of its cells."""

ALLOW = "allow-disclosure"
"""Key of whether a node takes part where others can compute its readings."""


@dataclass(frozen=True)
class NodeSettings:
    """Settings of a node, which its owner gives.

    Attributes:
        superlink: address of the server, as HOST:PORT.
        data: cube of this node, written by `stforecast prepare`; or its images, as a folder or an
            .npz file, which are one client: for several, start several nodes.
        first_client: number of this node's first client in the whole federation, counted from 0.
        out: folder for the clients' state and results; by default beside the data.
        model: model of this node's clients, one of those that the federation names, such as
            "mlp:hidden_size=16"; by default its clients take turns at them. It may read other
            services than they do, as in "mlp:hidden_size=16:inputs=call" or with inputs=none; data
            need no service that it does not read.
        root_certificates: certificate of the authority that signed the server's certificate; by
            default those of the system.
        key: private key of this node (P-384), whose public half is registered.
        require_secure_aggregation: take part only in runs whose server learns nothing but sums over
            the nodes.
        allow_disclosure: take part also in runs whose server, or whose only other party, can
            compute this node's readings from what it sends.
        share_totals: add this node's forecasts and test readings to the totals over three nodes or
            more, if the server asks for them.
        groups: column of the cube with the group of each cell, such as district, or a CSV with the
            columns cell and district. With share_totals, the server learns which groups this node
            has, and the total of each group on three nodes or more.
        insecure: use no encryption, for trials on one machine.
    """

    superlink: str
    data: Path
    first_client: int
    out: Path | None = None
    model: str = ""
    root_certificates: Path | None = None
    key: Path | None = None
    require_secure_aggregation: bool = False
    allow_disclosure: bool = False
    share_totals: bool = False
    groups: str = ""
    insecure: bool = False

    def check(self) -> None:
        """Check all that can be known before the server is asked."""
        found = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):(\d{1,5})", self.superlink)
        if found is None or not 0 < int(found[2]) < 2**16:
            raise InputError(
                f"superlink is {self.superlink!r}; give the server's name and port without "
                "https://, such as forecast.example.org:8000"
            )
        if self.first_client < 0:
            raise InputError(
                f"first_client is {self.first_client}; the clients of a federation count from 0"
            )
        if not self.data.exists():
            raise no_file(
                self.data, "cube", "write one with `stforecast prepare`, or give a folder of images"
            )
        if self.groups.endswith(".csv") and not Path(self.groups).is_file():
            raise no_file(Path(self.groups), "table of groups", "give a CSV of cell,district")
        if self.insecure and (self.root_certificates or self.key):
            raise InputError("insecure uses neither certificates nor keys; leave it out")
        for path in (self.root_certificates, self.key):
            if path and not path.is_file():
                raise no_file(
                    path, "certificate or key", "see docs/federation.md for how to make it"
                )
        if self.root_certificates:
            # Flower's SuperNode would print a traceback, and neither join nor end.
            with reading(self.root_certificates, "as a certificate", "give a file in PEM"):
                ssl.create_default_context(cadata=self.root_certificates.read_text("ascii"))
        begin = rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"
        if self.key and not re.match(begin, self.key.read_bytes()[:100]):
            raise InputError(
                f"{self.key}: not a private key; give the file that ssh-keygen wrote, "
                "not the one that ends in .pub"
            )

    def last_client(self) -> int:
        """Return the number of the last client of the cube, or of the one that has the images."""
        if self.data.is_dir() or self.data.suffix == ".npz":
            return self.first_client
        with open_cube(self.data) as cube:
            return self.first_client + cube.sizes["cell"] - 1

    def command(self, port: int) -> list[str]:
        """Return the command that starts the SuperNode, which starts no process for a message.

        It listens at the port for processes on this machine.
        """
        given: dict[str, str | int] = {
            "data": str(self.data.resolve()),
            "first-client": self.first_client,
        }
        csv = self.groups.endswith(".csv")
        further: dict[str, str | int] = {
            "out": str(self.out.resolve()) if self.out else "",
            "model": self.model,
            SECURE_ONLY: self.require_secure_aggregation,
            ALLOW: self.allow_disclosure,
            SHARE_TOTALS: self.share_totals,
            GROUPS: str(Path(self.groups).resolve()) if csv else self.groups,
        }
        given |= {name: value for name, value in further.items() if value}
        words = " ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
        files = {
            "--root-certificates": self.root_certificates,
            "--auth-supernode-private-key": self.key,
        }
        find_program("flower-supernode")
        start = [sys.executable, "-m", "stforecast.flower.own_supernode"]
        start += ["--superlink", self.superlink, "--host", HOST, "--isolation", "process"]
        flags = [f"{flag}={path.resolve()}" for flag, path in files.items() if path]
        flags += ["--insecure"] if self.insecure else []
        return [*start, "--port", str(port), "--node-config", words, *flags]
