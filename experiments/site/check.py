"""Repeats one cheap row of each page of `docs/results/`, as the page says, and compares numbers.

The command is the page's own, with the row that the page is about, such as the default's, or a
cheaper one if that takes too long, of a benchmark that is not out of date. Data are
prepared by the command that the page gives; files are looked for in `../shared/data`, or in the
folder that STFORECAST_DATA names.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from data_prep.base.errors import InputError
from experiments.site.measured import RESULTS, Benchmark, Row, benchmarks_of, read_folder
from experiments.site.results import UNNOTED, out_of_date
from experiments.site.tables import JUDGED
from stforecast.bench.kind import packaged

ROOT = Path(__file__).parents[2]

FILES = Path(os.environ.get("STFORECAST_DATA", ROOT.parent / "shared" / "data"))

MOST_SECONDS = 50
"""Seconds that a row may have taken when the page was made."""

TOLERANCE = 0.01
"""Largest relative change of a number that is no change of the page."""

PREPARED = re.compile(r"(\S+\.nc) \S*\s?by `([^`]+)`")
"""Cube and command in a benchmark's fact on its data."""


def check_page(name: str, folder: Path) -> str:
    """Repeat a row of a page in an empty folder; return what was found, in a line.

    Raises:
        InputError: if a number differs by more than `TOLERANCE`.
    """
    cheap = [found for found in repeatable(name) if found[1] <= MOST_SECONDS]
    if not cheap:
        return f"{name}: skipped, no row of {MOST_SECONDS} s has config, data and the same code"
    *_, benchmark, row = min(cheap, key=lambda found: found[:2])
    words = shlex.split(benchmark.about["command"])
    place = words.index("--out")
    words[place + 1 : place + 2] = ["out", "--row", JUDGED.sub("", row["method"])]
    for _, command in dict.fromkeys(PREPARED.findall(benchmark.about["facts"].get("data", ""))):
        run_command_of_page(shlex.split(command), folder)
    run_command_of_page(words, folder)
    of_row = {key: row[key] for key in ("data", "method")}
    rows = read_folder(folder / "out").tables["methods"]
    again = next(r for r in rows if of_row.items() <= r.items())
    where, found = f"{name}: {row['method']} on {row['data']}", []
    for number in {"MSE", "coverage", "width", "last round"} & row.keys() & again.keys():
        then, now = row[number], again[number]
        found.append(f"{number} {now:.4g} of {then:.4g}")
        if abs(now - then) > TOLERANCE * abs(then):
            raise InputError(
                f"{where}: {number} is {now:.4g}, on the page {then:.4g}; make the benchmark again "
                f"({benchmark.about['command']})"
            )
    return f"{where}: {', '.join(sorted(found))}"


def repeatable(name: str) -> Iterator[tuple[bool, float, Benchmark, Row]]:
    """Yield whether the page is about another row, the seconds, and each row to repeat here."""
    for benchmark in benchmarks_of(RESULTS / f"{name}.md").values():
        words, facts = shlex.split(benchmark.about["command"]), benchmark.about["facts"]
        prepared = PREPARED.findall(facts.get("data", ""))
        cubes = {cube for cube, _ in prepared}
        raw = [word for _, command in prepared for word in re.findall(r"--raw[ =](\S+)", command)]
        rows = benchmark.tables.get("methods", [])
        of_cubes = any("MSE" in row for row in rows)
        needed = {f"{name.partition(',')[0]}.nc" for name in benchmark.about["data"] if of_cubes}
        if (
            words[2].removesuffix(".toml") not in packaged()
            or out_of_date(benchmark) not in ("", UNNOTED)
            or not needed <= cubes
            or any(_located(word) == word for word in raw)  # Such as a simulated city.
            or any("backbone=" in word for word in words)  # Its features take minutes.
            or not FILES.is_dir()
        ):
            continue
        n, minutes = re.findall(r"[\d.]+", facts["runs"])
        for row in rows:
            mean = 60 * float(minutes) / float(n)
            seconds = float(row.get("train s") or row.get("seconds") or mean)
            other = row.get("reference", row["method"]) != row["method"]
            if seconds > 0.1 and ("train s" in row or not other):  # Else it learns nothing.
                yield other, seconds * row["runs"], benchmark, row


def run_command_of_page(words: list[str], folder: Path) -> None:
    """Run a command of a page in a folder, with the files that it names where they are here."""
    found = [_located(word) for word in words[1:]]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-m", "stforecast", "--quiet", *found],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise InputError(f"{shlex.join(words)}: {done.stderr.strip()}")


def _located(word: str) -> str:
    """Return a word of a command with the whole path of the file that it names, if that is here."""
    option, equals, name = word.rpartition("=")
    found = next(FILES.rglob(name), None) if name and not set(name) & {"/", "*"} else None
    return f"{option}{equals}{found}" if found else word
