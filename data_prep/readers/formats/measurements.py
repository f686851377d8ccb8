"""Measurements of network elements in XML and JSON, a file for each element and quarter hour.

Formats: 3GPP TS 32.435 with `measType` and `r`, or with `measTypes` and `measResults`; TS 32.401,
Ericsson's `mdc`; Nokia's `OMeS`; and VES `perf3gpp` events, TS 28.532, which are JSON. Each file
gives values of counters for managed objects. All objects of one class, such as `NRCellDU`, become
one table.

- A step begins where its granularity period ends, less its duration; the header's times may differ.
- An object's name is that of its element, without subnetworks, and its own below that.
- Values of a suspect object, and texts that are no numbers, are missing. A value that is a list,
  such as a histogram, is read where it is asked for as `counter[3]`.
- The same value twice, as in a file that was sent again, counts once; different ones are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import polars as pl

from data_prep.base.errors import InputError, Words, counted, some
from data_prep.readers.formats import Format, Part, table_of
from data_prep.readers.names import read_names
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import StepLog
from data_prep.readers.table import Table, as_numbers
from data_prep.readers.xml import Handlers, parse, read_all

log = StepLog("decode")

DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?")
NAME = re.compile(r"\s*([^=\-,/]+)[=-](.*)")
INDEXED = re.compile(r"(.+)\[(\d+)\]")
KEYS = ["time", "cell"]


class Measured(NamedTuple):
    """The values of one object in one step.

    Attributes:
        begin: begin of the step.
        seconds: its length.
        name: distinguished name of the object.
        counters: names of the values.
        values: texts, None where the object has no such value.
        suspect: whether the element marks them as not reliable.
    """

    begin: datetime
    seconds: float
    name: str
    counters: tuple[str, ...]
    values: Sequence[str | None]
    suspect: bool = False


Take = Callable[[Measured], None]
Wants = Callable[[str], bool]


@lru_cache(maxsize=2**14)
def class_of(name: str) -> str:
    """Return the class of an object, such as `NRCellDU`; empty if its name has none.

    >>> class_of("ManagedElement=a,NRCellDU=7")
    'NRCellDU'
    """
    found = NAME.fullmatch(re.split("[,/]", name)[-1])
    return found[1].strip() if found else ""


@lru_cache(maxsize=2**14)
def full_name(element: str, name: str) -> str:
    """Return the name of an object, with its element's, without subnetworks.

    >>> full_name("SubNetwork=S,MeContext=E1", "ManagedElement=1,NRCellDU=7")
    'MeContext=E1,ManagedElement=1,NRCellDU=7'
    >>> full_name("SubNetwork=S,ManagedElement=E1", "ManagedElement=E1,NRCellDU=7")
    'ManagedElement=E1,NRCellDU=7'
    >>> full_name("E1", "GNBDUFunction=1,NRCellDU=7")
    'E1,GNBDUFunction=1,NRCellDU=7'
    """
    kept = [p for p in element.split(",") if p.partition("=")[0] not in ("DC", "SubNetwork")]
    own = name.split(",")
    if kept and kept[-1] in (own[0], own[0].rpartition("=")[2]):
        kept = kept[:-1]  # The object's name begins with the element, which may have no class.
    return ",".join([*(part for part in kept if part), *own])


@lru_cache(maxsize=2**12)
def _time(text: str) -> datetime:
    """Read a time such as 2024-01-01T00:15:00+01:00 or 20240101001500Z."""
    written = text.strip()
    if re.match(r"\d{14}", written):
        written = f"{written[:8]}T{written[8:]}"
    return datetime.fromisoformat(written)


@lru_cache(maxsize=2**12)
def _seconds(text: str) -> float:
    """Read a duration such as PT15M or PT900S."""
    found = DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"expected a duration such as PT900S, found {text!r:.40}")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


class _Walker(Handlers):
    """Gives the values of one file to `take`, object by object; only of classes that it `wants`.

    Nothing of a file is kept but the object that is being read.
    """

    def __init__(self, take: Take, wants: Wants) -> None:
        super().__init__()
        self.take, self.wants = take, wants
        self.element = self.name = ""
        self.begin: datetime | None = None
        self.end: datetime | None = None
        self.seconds = math.nan
        self.counters: dict[str, str] = {}
        self.names: tuple[str, ...] = ()
        self.values: dict[str, str] = {}
        self.place = ""
        self.suspect = self.in_target = self.skipped = False
        keep = self._keep
        self.at_start = {
            "managedElement": lambda about: keep(element=about.get("localDn", "")),
            "granPeriod": lambda about: keep(
                end=_time(about["endTime"]), begin=None, seconds=_seconds(about["duration"])
            ),
            "PMSetup": lambda about: keep(
                begin=_time(about["startTime"]), seconds=60 * float(about["interval"])
            ),
            **dict.fromkeys(("measInfo", "mi"), lambda about: keep(counters={}, names=())),
            **dict.fromkeys(("measType", "r"), self._place),
            **dict.fromkeys(("measValue", "mv", "PMMOResult"), self._object),
        }
        self.at_stop = {
            "nedn": lambda: keep(element=self.text),
            "mts": lambda: keep(end=_time(self.text), begin=None),
            "gp": lambda: keep(seconds=float(self.text)),
            "measTypes": lambda: keep(counters=self._numbered()),
            "measResults": lambda: keep(values=self._numbered()),
            "r": self._value,
            **dict.fromkeys(("measType", "mt"), self._counter),
            **dict.fromkeys(("moid", "DN"), lambda: keep(name=self.text)),
            **dict.fromkeys(
                ("suspect", "sf"), lambda: keep(suspect=self.text.lower() in ("true", "1"))
            ),
            **dict.fromkeys(("measValue", "mv", "PMMOResult"), self._measured),
        }

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if "measurementType" in attributes:  # OMeS: its elements are counters.
            self.in_target = True
        elif self.in_target:
            self.place = tag

    def stop(self, tag: str) -> None:
        if self.in_target and tag == self.place:
            self.values[tag] = self.text
        elif self.in_target:
            self.in_target = False

    def _keep(self, **said: Any) -> None:
        for name, value in said.items():  # To ask for `__dict__` would make attributes slower.
            setattr(self, name, value)

    def _place(self, attributes: dict[str, str]) -> None:
        self.place = attributes.get("p", "")

    def _counter(self) -> None:
        self.counters[self.place or str(len(self.counters) + 1)] = "".join(self.texts).strip()

    def _object(self, attributes: dict[str, str]) -> bool:
        """Return whether the values are not wanted and to be skipped."""
        self.name = attributes.get("measObjLdn", "")
        self.values, self.suspect, self.place = {}, False, ""
        self.skipped = bool(self.name) and not self.wants(class_of(self.name))
        return self.skipped

    def _value(self) -> None:
        self.values[self.place or str(len(self.values) + 1)] = "".join(self.texts)
        self.place = ""

    def _numbered(self) -> dict[str, str]:
        return {str(i): text for i, text in enumerate(self.text.split(), start=1)}

    def _measured(self) -> None:
        if self.begin is None and self.end is not None:
            self.begin = self.end - timedelta(seconds=self.seconds)
        if self.begin is None or not self.seconds > 0:
            raise ValueError(f"object {self.name!r:.80} has no time, expected a granularity period")
        name = full_name(self.element, self.name)
        if self.skipped:
            self.take(Measured(self.begin, self.seconds, name, (), ()))
            return
        if len(self.names) != len(self.counters):
            self.names = tuple(self.counters.values())
        names, values = self.names or tuple(self.values), self.values
        texts = [*map(values.get, self.counters or values)]
        self.take(Measured(self.begin, self.seconds, name, names, texts, self.suspect))


def walk_xml(file: IO[bytes], take: Take, wants: Wants = lambda kind: True) -> None:
    """Give the values of a file of XML to `take`, object by object, in constant memory.

    Objects of a class that `take` does not want have no values.

    Raises:
        ValueError: as `parse`; if an object has no time.
    """
    parse(file, _Walker(take, wants))


def walk_event(event: Any, take: Take) -> None:
    """Give the values of a VES event to `take`, object by object.

    Raises:
        ValueError: if it is no event of measurements, or its times are impossible.
    """
    try:
        header = event["event"]["commonEventHeader"]
        data = event["event"]["perf3gppFields"]["measDataCollection"]
        seconds = float(data["granularityPeriod"])
        end = int(header["lastEpochMicrosec"])
        if not 1e15 < end < 1e16:  # 2001 to 2286.
            raise ValueError(f"lastEpochMicrosec is {end}, expected microseconds since 1970")
        begin = datetime.fromtimestamp(end / 1e6, UTC) - timedelta(seconds=seconds)
        for block in data["measInfoList"]:
            counters = tuple(block["measTypes"]["sMeasTypesList"])
            for each in block["measValuesList"]:
                given = {int(r["p"]): str(r["sValue"]) for r in each["measResults"]}
                values = [given.get(i) for i in range(1, len(counters) + 1)]
                name = full_name(data["measuredEntityDn"], each["measObjInstId"])
                suspect = str(each.get("suspectFlag", "")).lower() == "true"
                take(Measured(begin, seconds, name, counters, values, suspect))
    except (KeyError, TypeError) as e:
        raise ValueError(f"not a VES event of measurements ({e!r:.80})") from e


def walk_events(file: IO[bytes], take: Take) -> None:
    """Give the values of VES events to `take`: one, a list of them, or one in each line."""
    text = file.read().decode()
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    for event in found if isinstance(found, list) else [found]:
        walk_event(event, take)


@dataclass
class _Block:
    """Steps of objects that have the same counters, in the order of the files.

    Attributes:
        counters: names of the values.
        wanted: names of those to keep; empty for all.
        frames: columns of `time`, `cell` and the counters that are numbers already.
        begins: begins of further steps.
        names: their objects.
        texts: their values, object by object.
    """

    counters: tuple[str, ...]
    wanted: Collection[str]
    frames: list[pl.DataFrame] = field(default_factory=list)
    begins: list[datetime] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    texts: list[str | None] = field(default_factory=list)

    def add(self, found: Measured) -> None:
        """Add a step of an object."""
        self.begins.append(found.begin)
        self.names.append(found.name)
        self.texts += [None] * len(found.values) if found.suspect else found.values
        if len(self.texts) > 100_000:
            self.convert()

    def table(self) -> pl.DataFrame:
        """Return columns `time`, `cell` and the counters."""
        self.convert()
        return pl.concat(self.frames).with_columns(pl.all().exclude(KEYS).fill_nan(None))

    def convert(self) -> None:
        """Make the texts columns of numbers."""
        if len({t.tzinfo is None for t in self.begins}) > 1:
            raise InputError("some times have an offset from UTC and some have none")
        n, columns = len(self.counters), {}
        for i, name in enumerate(self.counters):
            elements = [m for m in map(INDEXED.fullmatch, self.wanted) if m and m[1] == name]
            if elements or not self.wanted or name in self.wanted:
                texts = pl.Series(self.texts[i::n], dtype=pl.String)
                if name in self.wanted or not self.wanted:
                    columns[name] = as_numbers(texts)
                for each in elements:
                    element = texts.str.split(",").list.get(int(each[2]), null_on_oob=True)
                    columns[each[0]] = as_numbers(element)
        self.frames.append(pl.DataFrame({"time": self.begins, "cell": self.names, **columns}))
        self.begins, self.names, self.texts = [], [], []


@dataclass
class Measurements:
    """Values of the objects of one class; `take` adds an object's step.

    Attributes:
        object_class: class of objects to keep; None for any, if there is one only.
        wanted: names of counters to keep; empty for all whose values are numbers.
        classes: how many steps of objects were seen of each class.
        suspect: number of steps of objects that were suspect.
        empty: counters without a number, such as lists, which `table` leaves out.
    """

    object_class: str | None = None
    wanted: Collection[str] = ()
    classes: Counter[str] = field(default_factory=Counter)
    suspect: int = 0
    empty: Sequence[str] = ()
    _blocks: dict[tuple[str, ...], _Block] = field(default_factory=dict)
    _seconds: set[float] = field(default_factory=set)

    def wants(self, kind: str) -> bool:
        """Return whether the values of a class are kept, or it will be asked which one to read."""
        return kind == self.object_class if self.object_class else {*self.classes} <= {kind}

    def take(self, found: Measured) -> None:
        """Add an object's step."""
        kind = class_of(found.name)
        self.classes[kind] += 1
        if kind != self.object_class and (self.object_class or len(self.classes) > 1):
            return  # Of several classes, it will be asked which one to read.
        self._seconds.add(found.seconds)
        self.suspect += found.suspect
        if found.counters not in self._blocks:
            self._blocks[found.counters] = _Block(found.counters, self.wanted)
        self._blocks[found.counters].add(found)

    def table(self, source: str) -> pl.DataFrame:
        """Return columns `time`, `cell` and the counters, in the order of time.

        Args:
            source: name of the files, for messages.

        Raises:
            InputError: if objects of several classes or steps of several lengths were read, or an
                object has two different values in a step.
        """
        self._check(source)
        tables = [_once(block.table(), source) for block in self._blocks.values()]
        names = Counter(name for table in tables for name in table.columns if name not in KEYS)
        if any(n > 1 for n in names.values()):
            tables = [_once(pl.concat(tables, how="diagonal"), source)]
        table = pl.concat(tables, how="align") if tables else pl.DataFrame()
        self.empty = [name for name in names if not table[name].is_not_null().any()]
        return table.drop(self.empty).sort(KEYS)

    def _check(self, source: str) -> None:
        if not self.classes:
            raise InputError(f"{source}: no objects with values, expected measurements")
        if self.object_class is None and len(self.classes) > 1:
            most = self.classes.most_common(1)[0][0]
            listed = some([f"{k or 'none'} ({n:,})" for k, n in self.classes.most_common()], 12)
            raise InputError(
                f"{source}: objects of several classes: {listed}; ",
                Words("read one of them, such as {object_class}", object_class=most),
            )
        if self.object_class is not None and self.object_class not in self.classes:
            raise InputError(
                f"{source}: no objects of class {self.object_class!r}; its classes are "
                f"{some(self.classes, 12)}"
            )
        if len(self._seconds) > 1:
            listed = some([f"{s:g} s" for s in sorted(self._seconds)], 6)
            raise InputError(
                f"{source}: steps of {listed}; put files of one granularity period into a folder"
            )


def _once(table: pl.DataFrame, source: str) -> pl.DataFrame:
    """Return the values of each step of an object once; refuse different ones."""
    if not table.select(KEYS).is_duplicated().any():
        return table
    values = pl.all().drop_nulls()
    n_different = table.group_by(KEYS).agg(values.n_unique())
    many = n_different.filter(pl.any_horizontal(pl.all().exclude(KEYS) > 1))
    if len(many):
        time, cell = many.sort(KEYS).row(0)[:2]
        raise InputError(
            f"{source}: {counted(len(many), 'step')} of objects have two different values, "
            f"such as {cell} at {time}; leave out the files that were replaced"
        )
    return table.group_by(KEYS).agg(values.first())


def read_measurements(
    part: Part, options: TableOptions, walk: Callable[[IO[bytes], Measurements], None]
) -> Table:
    """Read the objects of one class from all files of a part.

    Returns:
        Columns `time` (begin of the step), `cell` and counters.

    Raises:
        InputError: as `Measurements.table`; if a file cannot be read.
    """
    wanted = options.chosen or []
    if options.names is not None:
        wanted = [*map(read_names(Path(options.names)).code, wanted)]
    found = Measurements(options.object_class, wanted)
    read_all(part, lambda file: walk(file, found))
    table = found.table(part.name)
    if found.suspect:
        suspect = f"{counted(found.suspect, 'step')} of objects are marked as suspect"
        log.warning(part.name, f"{suspect} and are missing")
    if found.empty:
        said = f"left out, as they hold lists or no numbers: {some(found.empty, 4)}"
        way = Words("; name an element of a list as {values}", values=f"{found.empty[0]}[0]")
        log.warning(part.name, said, "" if wanted else way)
    return table_of(part, table)


class MeasurementsXml(Format):
    """Counters of managed objects: 3GPP TS 32.435 and 32.401, Nokia's OMeS."""

    name, how, suffixes = "measurements", "as measurements in XML", (".xml", ".xml.gz")
    begins = re.compile(rb"<(?:[\w.-]+:)?(measCollecFile|mdc|OMeS)[\s>/]")
    together = True

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the objects of one class."""
        return read_measurements(part, options, lambda f, own: walk_xml(f, own.take, own.wants))


class VesEvents(Format):
    """Events of 3GPP TS 28.532 with measurements, `perf3gpp`."""

    name, how, suffixes = "ves", "as VES events of measurements", (".json", ".json.gz")
    begins = re.compile(rb'"perf3gppFields"')
    together = True

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the objects of one class."""
        return read_measurements(part, options, lambda f, own: walk_events(f, own.take))
