"""Fuzz the reader of raw days for a bounded time: `python tests/bad_input/fuzz_raw_day.py`.

Seeds are lines of real days (`--raw`) or of a simulated one. They are mutated, written to a file
and read in blocks of several sizes, plain and packed. The reader must raise `InputError` in one
line, or give the sums that plain Python finds line by line; it must refuse if and only if
`RawDay.fault` finds fault with a line, a row stands twice, or the end is cut. What breaks that is
kept in a file, whose name is printed.
"""

from __future__ import annotations

import datetime
import gzip
import random
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from data_prep.base.errors import InputError
from data_prep.city.simulate import simulate
from data_prep.sets.telecom_italia import cdr
from data_prep.sets.telecom_italia.raw_day import INTERVAL_MS, RawDay

DATE = datetime.date(2013, 11, 1)
CELLS = np.arange(1, 10_001)
TOKENS = [
    b"", b"\t", b"\n", b"\r\n", b"\r", b" ", b"\0", b"-1", b"+1", b"1e999", b"1e-320", b"nan",
    b"inf", b"NaN", b"-0", b"0x1", b"1_0", b"1.", b".5", b"1e5", b"1E+5", b"9" * 30, b'"', b'"1"',
    b"'", b"\x2c", b";", b"#", b"\xff", b"\xef\xbb\xbf", "\u0663".encode(), "\u2028".encode(),
    b"\x0b", b"\x0c", b"\x1c", b"\x85", b"10000", b"10001", b"2147483647", b"2147483648",
    b"4294967297", b"18446744073709551616", b"1383260400000", b"1383346800000",
    b"00000000000000000001", b"null",
]  # fmt: skip


def mutate(text: bytes, lines: list[bytes], rng: random.Random) -> bytes:
    """One random change."""
    at = rng.randrange(len(text) + 1)
    end = min(len(text), at + rng.choice([1, 2, 8, 40]))
    match rng.randrange(7):
        case 0:
            return text[:at] + rng.choice(TOKENS) + text[at:]
        case 1:
            return text[:at] + rng.choice(TOKENS) + text[end:]
        case 2:
            return text[:at] + rng.randbytes(end - at) + text[end:]
        case 3:
            return text[:at] + text[end:]
        case 4:
            return text[:at]
        case 5:
            return text + rng.choice(lines)
    rows = text.split(b"\n")
    row = rng.randrange(len(rows))
    fields = rows[row].split(b"\t")
    fields[rng.randrange(len(fields))] = rng.choice(TOKENS)
    rows[row] = b"\t".join(fields)
    return b"\n".join(rows)


def expected(day: RawDay, text: bytes) -> dict[tuple[int, int], list[float]] | None:
    """Sums by cell and interval, found line by line; None if the file must be refused."""
    lines = text.removesuffix(b"\n").split(b"\n")
    if not text or any(day.fault(line) for line in lines):
        return None
    sums: dict[tuple[int, int], list[float]] = {}
    seen = set()
    for line in lines:
        cell, start, country, *activity = line.decode().rstrip("\r").split("\t")
        key = int(cell), (int(start) - day.start_ms) // INTERVAL_MS
        if (key, int(country)) in seen:
            return None
        seen.add((key, int(country)))
        old = sums.setdefault(key, [0.0] * 5)
        sums[key] = [a + float(b.strip(" ") or 0) for a, b in zip(old, activity, strict=True)]
    cut = not text.endswith(b"\n") and key[1] != day.n_intervals - 1
    return None if cut else sums


def problem(day: RawDay, text: bytes) -> str | None:
    """What is wrong with how the reader took a text; None if it was right."""
    wanted = None
    try:
        wanted = expected(day, text)
        found = cdr.read_day(day)
    except InputError as e:
        if "\n" in str(e) or len(str(e)) > 2000:
            return f"a long message: {e!r}"
        return None if wanted is None else f"a good file is refused: {e}"
    except BaseException as e:
        return f"{type(e).__name__}: {e}"
    if wanted is None:
        return "a bad file is read"
    place = {int(cell): i for i, cell in enumerate(found.cells)}
    if set(place) != {cell for cell, _ in wanted}:
        return f"other cells: {sorted(place)}"
    for (cell, interval), values in wanted.items():
        if not np.allclose(found.values[:, interval, place[cell]], values, rtol=1e-12, atol=0):
            return f"other sums of cell {cell}, interval {interval}"
    return None


def seeds(raw: Path | None) -> list[bytes]:
    """Lines of a raw day of `DATE`."""
    with tempfile.TemporaryDirectory() as folder:
        if raw is None:
            simulate(Path(folder), cells=4, days=1)
        name = f"sms-call-internet-mi-{DATE}.txt"
        return ((raw or Path(folder)) / name).read_bytes().splitlines(keepends=True)


@click.command()
@click.option("--seconds", default=60.0, help="How long.")
@click.option("--seed", default=1, help="Seed of the mutations.")
@click.option("--raw", type=click.Path(path_type=Path), help="Folder of real days of Milan.")
@click.option("--keep", type=click.Path(path_type=Path), default="fuzz", help="For what it finds.")
def main(seconds: float, seed: int, raw: Path | None, keep: Path) -> None:
    """Fuzz the reader of raw days; exit code 1 if it finds anything."""
    rng, lines = random.Random(seed), seeds(raw)
    deadline, n, n_found = time.monotonic() + seconds, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day.txt"
        while time.monotonic() < deadline:
            text = b"".join(rng.sample(lines, rng.randint(1, 6)))
            for _ in range(rng.randint(0, 4)):
                text = mutate(text, lines, rng)
            cdr.BLOCK_BYTES = rng.choice([1, 50, 4 << 20])
            packed = rng.random() < 0.1
            path.write_bytes(gzip.compress(text) if packed else text)
            n += 1
            foreign = not packed and text.startswith((b"PK\x03\x04", b"\x1f\x8b"))
            if not foreign and (what := problem(RawDay(path, DATE, CELLS), text)):
                n_found += 1
                keep.mkdir(parents=True, exist_ok=True)
                kept = keep / f"raw-day-{seed}-{n}.txt"
                kept.write_bytes(text)
                click.echo(f"{kept}: blocks of {cdr.BLOCK_BYTES}: {what}")
    click.echo(f"{n} files, {n_found} problems")
    raise SystemExit(1 if n_found else 0)


if __name__ == "__main__":
    main()
