"""Run folders: the files that all kinds of runs have in common.

`run.json` is written last, so its presence marks a complete run. Until then `settings.json` holds
the settings and `checkpoints/` the progress.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import itertools
import json
import logging
import os
import platform
import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import pandas as pd
from safetensors import SafetensorError

from data_prep.base.errors import InputError, Words, needing, reading
from data_prep.base.files import atomic_path, is_full

log = logging.getLogger(__name__)

Config = TypeVar("Config")

ABOUT = "run.json"
"""Name of the file that describes a finished run."""

BEGUN = "settings.json"
"""Name of the file that describes an unfinished run."""

LINES = "lines"
"""Entry of `run.json` with the number of lines of each table by its file's name."""

KEPT = "kept"
"""Entry of `run.json` that is true if only what tables of a benchmark read is left of the run."""

CHECKPOINTS = "checkpoints"
"""Name of the folder of an unfinished run's checkpoints."""

FORMAT = 1
"""Version of the layouts of `settings.json`, checkpoints and models; another is refused."""

OF_FILES = (".csv", ".html", ".json", ".md", ".nc", ".pdf", ".png", ".svg", ".tex", ".xlsx")
"""Suffixes of files, which no new folder has."""

AGAIN = "delete the folder and run it again"
"""Remedy for a run with damaged results."""


def check_new(out: Path, command: str) -> None:
    """Check before a run that its results can be written: no run or file is in the way."""
    if (out / ABOUT).exists():
        raise InputError(
            f"{out} already holds a finished run; ", Words("choose another {out} or delete it")
        )
    if is_begun(out):
        raise InputError(
            f"{out} holds an unfinished run; go on with `{command} --resume {quote(str(out))}`, ",
            Words("choose another {out} or delete it"),
        )
    check_folder(out)


def check_folder(out: Path) -> None:
    """Check that a folder exists or can be created, and is not named like a file."""
    if out.suffix.lower() in OF_FILES and not out.exists():
        raise InputError(f"{out} has the name of a file; ", Words("choose a folder for {out}"))
    nearest = next(path for path in (out, *out.parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"{nearest} is a file; ", Words("choose a folder for {out}"))


def begin(out: Path, about: Mapping[str, Any]) -> None:
    """Write the `settings` of a run before it starts, and what else resuming needs, as JSON."""
    contents = {"format": FORMAT, "versions": versions(), **about}
    contents["checksum"] = checksum_of_json(contents)
    with writing(out):
        write_json(out / BEGUN, contents)


def checksum_of_json(contents: Mapping[str, Any]) -> str:
    """Return a checksum of JSON that does not depend on the order of keys."""
    text = json.dumps({k: v for k, v in contents.items() if k != "checksum"}, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def is_finished(out: Path) -> bool:
    """Return whether the folder holds a run with all its results."""
    return (out / ABOUT).exists()


def is_begun(out: Path) -> bool:
    """Return whether the folder holds an unfinished run that can be resumed."""
    return not is_finished(out) and any((out / CHECKPOINTS).rglob("round-*"))


def check_begun(out: Path, command: str) -> None:
    """Check that a folder holds a finished or unfinished run."""
    if not is_finished(out) and not (out / BEGUN).exists():
        within = [quote(str(path.parent)) for path in sorted(out.glob(f"*/{BEGUN}"))]
        again = f" --resume {within[0]}" if within else ""
        raise InputError(
            f"{out}: no unfinished run here (no {BEGUN}); {'go on' if again else 'begin a run'} "
            f"with `{command}{again}`"
        )


def write_json(path: Path, contents: Mapping[str, Any]) -> None:
    """Write a file of JSON, whole or not at all."""
    with atomic_path(path) as part:
        part.write_text(json.dumps(contents, indent=2) + "\n")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a file of JSON that gives its `format`; the remedy is for a damaged or another one."""
    with reading(path, "as JSON", remedy):
        about = json.loads(path.read_text())
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else type(about).__name__
        raise InputError(f"{path}: format {found!r}, this version reads {FORMAT}; {remedy}")
    return about


def read_begun(out: Path, command: str, entries: Iterable[str] = ("label",)) -> dict[str, Any]:
    """Read what `begin` wrote; warn if it was written with other versions of packages.

    Raises:
        InputError: if there is no such file, or it is damaged or of another version.
    """
    check_begun(out, command)
    path, remedy = out / BEGUN, f"begin a run with `{command}`"
    about = read_json(path, remedy)
    if about.get("checksum") != checksum_of_json(about):
        raise InputError(f"{path}: cannot be trusted, its checksum differs; {remedy}")
    settings = about.get("settings")
    missing = [name for name in entries if name not in about]
    if not isinstance(settings, dict) or "method" not in settings:
        missing = ["method in its settings"]
    if missing:
        raise InputError(f"{path}: no {missing[0]}; {remedy}")
    now, then = versions(), about.get("versions", {})
    if changed := [f"{p} {then[p]}" for p in now if then.get(p, now[p]) != now[p]]:
        log.warning("%s was begun with %s; numbers may differ a little", out, ", ".join(changed))
    return about


def read_config(out: Path, command: str, resolve: Callable[..., Config]) -> Config:
    """Read the settings of a finished or unfinished run, by `resolve`."""
    about = read_about(out, command) if is_finished(out) else read_begun(out, command)
    try:
        return resolve(**about["settings"])
    except InputError as e:
        raise InputError(f"{out}: ", e) from e


def finish(out: Path) -> None:
    """Remove the files that only an unfinished run needs."""
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    (out / BEGUN).unlink(missing_ok=True)


@contextmanager
def writing(target: Path, then: str = "") -> Iterator[None]:
    """Convert an error of the file system within the context to an `InputError` with a remedy.

    Args:
        target: file or folder that is written.
        then: what to do once it can be written; by default, another place may be chosen.
    """
    try:
        yield
    except (OSError, SafetensorError) as e:
        reason = getattr(e, "strerror", None) or " ".join(str(e).split())
        mend = "free some space" if is_full(e) else "make it writable"
        remedy = f"{mend}, then {then}" if then else Words("choose another {out}")
        raise InputError(f"{target}: cannot be written ({reason}); ", remedy) from e


@cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that compute a run."""
    packages = ("stforecast", "torch", "numpy", "pandas", "scikit-learn", "xarray")
    return {"python": platform.python_version(), **{p: version(p) for p in packages}}


def processor() -> str:
    """Return the processor's name, as far as the system tells."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


@cache
def commit() -> str:
    """Return the commit of the code, with "-dirty" for later changes; empty without a checkout."""
    here = Path(__file__)
    try:
        git = partial(subprocess.run, check=True, capture_output=True, text=True, cwd=here.parent)
        git(["git", "ls-files", "--error-unmatch", here.name])  # Else it is another repository's.
        return str(git(["git", "describe", "--always", "--dirty"]).stdout.strip())
    except (OSError, subprocess.CalledProcessError):
        return ""


def write_about(out: Path, about: dict[str, Any]) -> None:
    """Write the description of a finished run, with what made it and the lines of its tables."""
    import torch  # Readers of runs do without it.

    threads = about["settings"].get("workers") or torch.get_num_threads()
    made = {"commit": commit(), "processor": processor(), "threads": threads}
    about = {**about, LINES: lines_of_tables(out), "versions": versions(), "made_with": made}
    write_json(out / ABOUT, about)


def lines_of_tables(folder: Path) -> dict[str, int]:
    """Return the number of lines of each table in a folder by its file's name."""
    return {path.name: count_lines(path) for path in sorted(folder.glob("*.csv"))}


def count_lines(path: Path) -> int:
    """Return the number of line ends in a file."""
    with path.open("rb") as file:
        return sum(part.count(b"\n") for part in iter(lambda: file.read(2**20), b""))


def read_about(
    folder: Path, command: str, entries: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """Read the description of a finished run, with required entries besides the settings."""
    try:
        about = json.loads((folder / ABOUT).read_text())
    except (OSError, ValueError, RecursionError) as e:
        below = [path.parent for path in sorted(folder.glob(f"*/{ABOUT}"))]
        raise InputError(
            f"{folder}: not a finished run ({type(e).__name__} at {ABOUT}); give "
            + (str(below[0]) if len(below) == 1 else f"a folder that `{command}` wrote")
        ) from e
    required: dict[str, Any] = {"settings": dict, LINES: dict, **(entries or {})}
    for name, kind in required.items():
        found = about.get(name) if isinstance(about, dict) else None
        if not isinstance(found, kind) or (name == "settings" and "method" not in found):
            raise InputError(f"{folder / ABOUT}: no {name} in it; `{command}` writes them")
    return dict(about)


def find_folders(folders: Iterable[Path], command: str) -> list[Path]:
    """Return the folders of finished runs in the given ones and below them, in order of name."""
    runs = []
    for folder in folders:
        found = sorted(folder.rglob(ABOUT)) if folder.is_dir() else []
        if not found and (folder / BEGUN).exists():
            raise InputError(
                f"{folder}: the run here is not finished; `stforecast info {quote(str(folder))}` "
                "says how to go on"
            )
        if not found:
            raise InputError(f"{folder}: no finished run here; `{command}` writes one")
        runs += [path.parent for path in found]
    return runs


def read_csv(
    path: Path, numbers: Iterable[str], text: Iterable[str] = (), lines: int | None = None
) -> pd.DataFrame:
    """Read a table of a run with required columns of numbers and of text; values may be missing.

    Only an empty field is missing: `NA`, `None` and the like may be names of cells or classes.
    """
    with reading(path, "as a table", AGAIN):
        longest = 2**14  # Thousands of columns would take the parser minutes.
        with path.open() as file:
            header = file.readline(longest)
        if len(header) == longest:
            raise InputError(f"{path}: line 1 is longer than {longest} characters; {AGAIN}")
        _check_whole(path, lines)
        types = dict.fromkeys(text, str)
        table = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""])
        table = table.rename(columns=as_named)
        for name in table.columns.intersection(list(text)):
            named = {t: as_named(t) for t in table[name].dropna().unique()}
            if changed := {t: own for t, own in named.items() if t != own}:
                table[name] = table[name].replace(changed)
    for name in (*numbers, *text):
        if name not in table:
            raise InputError(f"{path}: no column {name!r}; {AGAIN}")
    for name in numbers:
        if len(table) and table[name].dtype.kind not in "iuf":
            raise InputError(f"{path}: no numbers in column {name!r}; {AGAIN}")
    return table


@lru_cache(maxsize=64)
def _read_once(path: Path, changed: int, size: int, *columns: Any) -> pd.DataFrame:
    """Read a table; another time of change or size is another file."""
    return read_csv(path, *columns)


def _check_whole(path: Path, lines: int | None) -> None:
    """Refuse a table with a hole of zeros, a cut last line, or another number of lines."""
    with path.open("rb") as file:
        if any(b"\0" in part for part in iter(lambda: file.read(2**20), b"")):
            raise InputError(f"{path}: holds bytes of zero where text was expected; {AGAIN}")
        file.seek(max(0, path.stat().st_size - 1))
        if file.read(1) != b"\n":
            n = count_lines(path) + 1
            raise InputError(f"{path}: line {n}, the last one, was cut; {AGAIN}")
    if lines is not None and (found := count_lines(path)) != lines:
        raise InputError(
            f"{path}: holds {found - 1} rows below its first line, expected {lines - 1}; {AGAIN}"
        )


FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""Beginning of a text that a spreadsheet takes for a formula, or of one that `inert` has marked."""


CsvStyle = Literal["plain", "excel"]
"""Commas and points, for programs; or semicolons, decimal commas and a byte order mark, for an
Excel of a language with decimal commas."""


def write_table(table: pd.DataFrame, path: Path, style: CsvStyle = "plain") -> None:
    """Write a table that a person opens, as .xlsx or .csv by the file's ending.

    Excel knows no offsets: for it, times are local, with their `utc_offset` in a column.

    Raises:
        InputError: if an .xlsx is asked for and openpyxl is not installed.
    """
    excel = path.suffix.lower() == ".xlsx"
    if excel or style == "excel":
        table = _without_offsets(table)
    if not excel:
        return write_csv(_with_midnight(table), path, style)
    check_excel(path)
    marked = {name: inert(name) for name in _names(table) if inert(name) != name}
    book = _workbook(_marked(table, marked))
    with atomic_path(path) as part:
        part.write_bytes(book)


def check_excel(path: Path) -> None:
    """Refuse to write a workbook if openpyxl, with which pandas writes it, is not installed."""
    with needing("excel", f"{path}: needs a library"):
        import openpyxl  # noqa: F401


def _with_midnight(table: pd.DataFrame) -> pd.DataFrame:
    """Write times of day that are all midnight out, unless all columns of times are dates."""
    times = table.select_dtypes("datetime")
    dates = [n for n, t in times.items() if (t.isna() | (t == t.dt.normalize())).all()]
    if len(dates) == times.shape[1]:
        return table
    return table.assign(**{str(n): times[n].dt.strftime("%Y-%m-%d %H:%M:%S") for n in dates})


def _workbook(table: pd.DataFrame) -> bytes:
    """Return a workbook of one sheet, whose columns are as wide as their texts and times.

    It is made in memory, as openpyxl prints tracebacks where a disk is full.
    """
    file = io.BytesIO()
    with pd.ExcelWriter(file, engine="openpyxl") as writer:
        table.to_excel(writer, index=False)
        (sheet,) = writer.sheets.values()
        sheet.freeze_panes = "A2"
        for cells, (name, column) in zip(sheet.columns, table.items(), strict=True):
            numbers = column.dtype.kind in "iuf"
            shown = 0 if numbers else column.astype(str).str.len().max()
            width = max(len(str(name)), 10 if numbers else shown) + 2
            sheet.column_dimensions[cells[0].column_letter].width = width
    return file.getvalue()


def _without_offsets(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with local times, and the offset of the first column of times beside it."""
    zoned = table.select_dtypes("datetimetz").columns
    local = table.assign(**{name: table[name].dt.tz_localize(None) for name in zoned})
    if len(zoned):
        offset = table[zoned[0]].dt.strftime("%z")
        local.insert(list(local.columns).index(zoned[0]) + 1, "utc_offset", "UTC" + offset)
    return local


def write_csv(
    table: pd.DataFrame | Iterable[pd.DataFrame], path: Path, style: CsvStyle = "plain"
) -> None:
    """Write a table atomically; texts that a spreadsheet would run are made `inert`.

    A table may come in parts of equal columns, of which one is in memory at a time. The names in
    all of them are like those in the first.
    """
    separator, decimal = (";", ",") if style == "excel" else (",", ".")
    encoding = "utf-8-sig" if style == "excel" else None
    parts = iter([table] if isinstance(table, pd.DataFrame) else table)
    first = next(parts)
    # The csv module takes a carriage return for the end of a line, but quotes only line feeds.
    lines = any("\r" in str(name) for name in _names(first))
    warned = False
    with (
        atomic_path(path) as part,
        part.open("w", newline="", errors="backslashreplace", encoding=encoding) as file,
    ):
        for some in itertools.chain([first], parts):
            marked = {name: inert(name) for name in _names(some) if inert(name) != name}
            if marked and not warned:
                warned = True
                log.warning(
                    "%s: a ' stands before %s and other names that a spreadsheet would run as "
                    "formulas; remove it to join the table with your own",
                    path,
                    min(marked),
                )
            table = _with_texts_of_times(_marked(some, marked))
            single = table.select_dtypes("float32")
            large = single.columns[(single.abs() >= 2**24).any()]
            if len(large):  # Else without all digits.
                table = table.astype(dict.fromkeys(large, "float64"))
            table.to_csv(
                file,
                index=False,
                header=some is first,
                quoting=csv.QUOTE_NONNUMERIC if lines else csv.QUOTE_MINIMAL,
                sep=separator,
                decimal=decimal,
            )


def _with_texts_of_times(table: pd.DataFrame) -> pd.DataFrame:
    """Write times with a zone as texts, each once: pandas takes long for them."""
    table = table.copy(deep=False)
    for name, times in table.select_dtypes("datetimetz").items():
        codes, found = pd.factorize(times)
        table[name] = pd.Index(found).astype(str).take(codes, fill_value=np.nan)
    return table


def _texts(table: pd.DataFrame) -> pd.Index:
    return table.select_dtypes(exclude=["number", "bool", "datetime", "datetimetz"]).columns


def _names(table: pd.DataFrame) -> set[Any]:
    """Return the texts of a table, and the names of its columns."""
    return {*table.columns, *(name for column in _texts(table) for name in table[column].unique())}


def _marked(table: pd.DataFrame, marked: Mapping[Any, Any]) -> pd.DataFrame:
    """Replace texts and names of columns."""
    if not marked:
        return table
    changed = {marked.get(n, n): table[n].replace(marked) for n in _texts(table)}
    return table.rename(columns=marked).assign(**changed)


def inert(text: Any) -> Any:
    """Put a ' before a text that a spreadsheet would run as a formula, as OWASP recommends.

    >>> inert("=1+2"), inert("-5"), inert("-cell 5"), inert("cell 5")
    ("'=1+2", '-5', "'-cell 5", 'cell 5')
    """
    if not isinstance(text, str) or not FORMULA.match(text):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def as_named(text: str) -> str:
    """Return the text that `inert` was given.

    >>> as_named(inert("=1+2")), as_named("-5")
    ('=1+2', '-5')
    """
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


@dataclass(frozen=True)
class Run(ABC):
    """A finished run, with the contents `about` of its `run.json`; one subclass for each kind."""

    folder: Path
    about: dict[str, Any]

    command: ClassVar[str]
    """Command that writes such folders, for messages."""

    entries: ClassVar[Mapping[str, type]] = MappingProxyType({})
    """Required entries of `run.json` besides the settings, and their types."""

    no_difference: ClassVar[frozenset[str]] = frozenset(
        {"seed", "device", "cohort", "workers", "engine", "actors", "checkpoint_every"}
    )
    """Settings that may differ between averaged runs, as they do not change what is computed."""

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open the finished run of a folder."""
        return cls(Path(folder), read_about(Path(folder), cls.command, cls.entries))

    @classmethod
    def find(cls, folders: Iterable[str | os.PathLike[str]]) -> list[Self]:
        """Open every finished run in the given folders and below them, in order of name.

        A copy of a run counts once, with a warning, as it is no further evidence.

        Raises:
            InputError: if runs of one label, settings and seed have other results, as those before
                and after a change of the code; one row cannot stand for both.
        """
        alike: dict[str, Self] = {}
        for run in map(cls.open, find_folders(map(Path, folders), cls.command)):
            # A copy may lack or change its times, lines and what made it.
            same = {k: v for k, v in run.about.items() if "seconds" not in k}
            same = {k: v for k, v in same.items() if k not in ("versions", "made_with", LINES)}
            twin = alike.setdefault(json.dumps(same, sort_keys=True), run)
            if twin.folder.resolve() == run.folder.resolve():
                continue
            if twin._results() != run._results():
                raise InputError(
                    f"{run.folder} and {twin.folder} have the same label, settings and seed, but "
                    f"other results; give one of them, or change the label in its {ABOUT}"
                )
            log.warning("%s is a copy of %s, and is left out", run.folder, twin.folder)
        return [*alike.values()]

    def _results(self) -> bytes:
        path = self.folder / "metrics.csv"
        return path.read_bytes() if path.exists() else b""

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.about["settings"]["method"])

    @property
    def label(self) -> str:
        """Name of the run in a legend."""
        return str(self.about.get("label", self.method))

    def in_row(self, label: str, table: str) -> Self:
        """Return the run with the label and table of a benchmark's row; `run.json` keeps them."""
        about = {**self.about, "label": label, "table": table}
        if not table:
            del about["table"]
        if about != self.about:
            write_json(self.folder / ABOUT, about)
        return dataclasses.replace(self, about=about)

    @property
    def kept(self) -> bool:
        """Whether only its tables and sums are left, see `stforecast.bench.kept`."""
        return bool(self.about.get(KEPT))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by flat name."""
        settings: dict[str, Any] = self.about["settings"]
        return settings

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.settings["seed"])

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return the properties by which its data differ from other runs', such as their name."""

    @property
    def test_span(self) -> tuple[str, str] | None:
        """First and last time of its test part; None if its data have no times."""
        return None

    def read_table(
        self, name: str, numbers: Iterable[str], text: Iterable[str] = ()
    ) -> pd.DataFrame:
        """Read one of its tables, see `read_csv`.

        A small one is read once, as several figures and tables need it.
        """
        path, lines = self.folder / name, self.about[LINES].get(name)
        if path.is_file() and (found := path.stat()).st_size <= 2**22:
            names = tuple(numbers), tuple(text)
            return _read_once(path, found.st_mtime_ns, found.st_size, *names, lines).copy()
        return read_csv(path, numbers, text, lines)

    @abstractmethod
    def metrics(self) -> pd.DataFrame:
        """Read `metrics.csv`."""

    @abstractmethod
    def rounds(self) -> pd.DataFrame:
        """Read `rounds.csv`."""
