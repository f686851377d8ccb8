"""An archive of what the tables of a benchmark read of its runs: a few KB of each.

A benchmark writes it next to its tables. In a folder that has the archive but no runs, it begins
with the archive's: then `--row` makes one row again, and compares it with the others as they were.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from data_prep.base.errors import reading
from data_prep.base.files import atomic_path
from data_prep.base.limits import check_expansion
from stforecast.bench.kind import Kind
from stforecast.bench.run_groups import R
from stforecast.federated.runs.run_folder import ABOUT, KEPT, LINES, lines_of_tables, write_json

ARCHIVE = "kept.tar.xz"
"""Name of the archive in the folder of a benchmark."""

RUNS = "runs"
"""Name of the folder of the runs."""

PROBE = "probe"
"""Entry of `run.json` that shows what the code of a kept run computed, see `Kind.probe`."""


def pack_runs(kind: Kind[R], runs: Sequence[R], out: Path, probe: str) -> None:
    """Write the archive of a benchmark's runs, with their paths in its folder."""
    with (
        atomic_path(out / ARCHIVE) as part,
        tarfile.open(part, "w:xz") as archive,
        tempfile.TemporaryDirectory() as folder,
    ):
        for run in sorted(runs, key=lambda run: run.folder):
            kept, place = run.folder, run.folder.relative_to(out).as_posix()
            if not run.kept:
                kept = Path(folder, place)
                kept.mkdir(parents=True)
                kind.keep(run, kept)
                about = {n: value for n, value in run.about.items() if n != "data_path"}
                about |= {LINES: lines_of_tables(kept), KEPT: True}
                if run.method == probe.partition(",")[0]:
                    about[PROBE] = probe
                write_json(kept / ABOUT, about)
            for path in sorted(kept.iterdir()):
                archive.add(path, f"{place}/{path.name}", filter=_nameless)


def _nameless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member without owner and time, so that the same runs give the same archive."""
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack_runs(out: Path) -> None:
    """Unpack the archive in the folder of a benchmark that has no runs."""
    if (out / RUNS).exists() or not (out / ARCHIVE).exists():
        return
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{RUNS}-") as folder:
        with (
            reading(out / ARCHIVE, "as an archive of runs", "copy it again, or delete it"),
            tarfile.open(out / ARCHIVE) as archive,
        ):
            members = archive.getmembers()
            check_expansion(sum(member.size for member in members), out / ARCHIVE)
            archive.extractall(folder, members, filter="data")
        Path(folder, RUNS).rename(out / RUNS)
