"""Registries of methods, models, data sets, metrics, plots and the like, and their docstrings.

Each kind is one `Registry`. Its entries come from the modules of our packages and from the entry
points of other installed packages. Nothing is imported before it is needed.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

from data_prep.base.errors import InputError, choose

log = logging.getLogger(__name__)

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


class Found(NamedTuple):
    """An entry and its origin, as given in errors."""

    entry: Any
    origin: str


class Registry(Mapping[str, T]):
    """All entries of one kind by name, searched for on first use.

    Classes and objects are named by their `name`; functions and modules by their Python name, with
    dashes. Any access raises `InputError` if two entries have the same name.

    Args:
        kind: name of the kind in errors, such as "method".
        packages: our packages whose modules define entries.
        is_entry: predicate of entries, such as `is_listed` or the result of `is_named`.
        group: entry point group for other packages.
        sort_by: sort key of an entry; by default its name.
    """

    def __init__(
        self,
        kind: str,
        *packages: str,
        is_entry: Callable[[Any], bool],
        group: str,
        sort_by: Callable[[Any], Any] | None = None,
    ) -> None:
        self.kind = kind
        self._packages = packages
        self._is_entry = is_entry
        self._group = group
        self._sort_by = sort_by or _name
        self._searched: list[str] = []
        self._found: dict[str, Found] = {}

    def __getitem__(self, name: str) -> T:
        result: T = self.found()[name].entry
        return result

    def __iter__(self) -> Iterator[str]:
        return iter(self.found())

    def __len__(self) -> int:
        return len(self.found())

    def find(self, name: str) -> T:
        """The entry of that name; without one, the `InputError` lists the names."""
        return find(self.kind, name, self)

    def found(self) -> Mapping[str, Found]:
        """Return entries and their origins by name; search again if the places have changed.

        Raises:
            InputError: if two have the same name.
        """
        packages = [importlib.import_module(name) for name in self._packages]
        places = [*sys.path, *(place for package in packages for place in package.__path__)]
        if places != self._searched:
            named: dict[str, Found] = {}
            for package in packages:
                _add(named, self._in_modules(package))
            _add(named, self._in_entry_points())
            order = sorted(named, key=lambda name: self._sort_by(named[name].entry))
            self._found, self._searched = {name: named[name] for name in order}, places
        return self._found

    def _in_modules(self, package: ModuleType) -> Iterator[Found]:
        import pkgutil

        for info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            for name, thing in (("module", module), *vars(module).items()):
                try:
                    usable = self._is_entry(thing)
                except InputError as e:
                    raise InputError(f"{module.__file__}, {name}: ", e) from e
                if usable:
                    yield Found(thing, f"{self.kind} of {module.__name__}")

    def _in_entry_points(self) -> Iterator[Found]:
        points = _entry_points(tuple(sys.path)).select(group=self._group)
        for point in sorted(points, key=lambda point: point.name):
            package = f"{point.dist.name} {point.dist.version}" if point.dist else "unknown"
            try:
                thing, problem = point.load(), f"it is no {self.kind} such as docs/extend.md shows"
                usable = self._is_entry(thing)
            except Exception as e:  # a foreign module may raise anything when it is imported
                usable, problem = False, f"{type(e).__name__}: {e}"
            if usable:
                if point.dist is None or point.dist.name != "stforecast":
                    FOREIGN.add(re.split("[.:]", point.value)[0])
                yield Found(thing, f"{self.kind} {point.value} of the package {package}")
            else:
                log.warning(
                    "package %s: its entry point %s = %s of %s cannot be used (%s); repair it or "
                    "uninstall the package",
                    package,
                    point.name,
                    point.value,
                    self._group,
                    problem,
                )


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> Any:  # Their class depends on the Python.
    """Return the entry points of all packages in a path for imports, which take long to read."""
    from importlib.metadata import entry_points  # slow to import

    return entry_points()


FOREIGN: set[str] = set()
"""Top-level modules of the other packages whose entry points were found."""


def foreign_place(error: BaseException) -> str:
    """Return file and line of the innermost call in such a package that raised; "" without one."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if frame.f_globals.get("__name__", "").partition(".")[0] in FOREIGN:
            return f"{frame.f_code.co_filename}, line {line}"
    return ""


def find(kind: str, name: str, known: Mapping[str, T]) -> T:
    """The entry of that name; without one, the `InputError` lists the names."""
    if name not in known:
        raise choose(kind, name, known)
    return known[name]


def merged(*registries: Registry[Any]) -> dict[str, Any]:
    """Merge the entries of several kinds that share one namespace.

    Raises:
        InputError: if two have the same name.
    """
    named: dict[str, Found] = {}
    for registry in registries:
        _add(named, registry.found().values())
    return {name: found.entry for name, found in named.items()}


def listed(function: Function) -> Function:
    """Mark a function as an entry of its package's registry."""
    vars(function)["listed"] = True
    return function


def listed_as(name: str) -> Callable[[Function], Function]:
    """Mark a function as an entry under a shorter name than its own."""

    def mark(function: Function) -> Function:
        vars(function)["listed"] = name
        return function

    return mark


def is_listed(thing: Any) -> bool:
    """Return whether it is a function marked as `listed`."""
    return isinstance(thing, FunctionType) and bool(vars(thing).get("listed"))


def is_named(base: type) -> Callable[[Any], bool]:
    """Return a predicate of subclasses of `base` that define their own `name`.

    It raises `InputError` if such a class has `Options` that are no dataclass.
    """

    def is_entry(thing: Any) -> bool:
        if not (isinstance(thing, type) and issubclass(thing, base) and vars(thing).get("name")):
            return False
        if "Options" in vars(thing) and not dataclasses.is_dataclass(vars(thing)["Options"]):
            raise InputError("its Options are no dataclass; add @dataclass(frozen=True)")
        return True

    return is_entry


def _add(named: dict[str, Found], found: Iterable[Found]) -> None:
    for new in found:
        old = named.setdefault(_name(new.entry), new)
        if old.entry is not new.entry:
            raise InputError(
                f"two are called {_name(new.entry)!r}: the {old.origin} and the {new.origin}; "
                "rename one, or uninstall its package"
            )


def _name(entry: Any) -> str:
    if isinstance(entry, FunctionType) and isinstance(name := vars(entry).get("listed"), str):
        return name
    if isinstance(entry, FunctionType | ModuleType):
        return entry.__name__.rpartition(".")[2].replace("_", "-")
    return str(entry.name)


def entries(doc: str | None, section: str) -> dict[str, str]:
    r"""Return names and texts of one section of a Google-style docstring.

    >>> entries("Sum.\n\nArgs:\n    a: a number,\n        such as 1.\n    b: another.", "Args")
    {'a': 'a number, such as 1.', 'b': 'another.'}
    """
    body = inspect.cleandoc(doc or "").partition(f"\n{section}:\n")[2]
    body = re.split(r"\n(?=\S)", body)[0]
    found = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |\Z)", body, re.M | re.S)
    return {name: " ".join(text.split()) for name, text in found}


def help_text(doc: str | None) -> str:
    """Return a docstring's text before its sections for click; lists and code are kept."""
    sections = r"\n(?:Args|Attributes|Options|Returns|Raises):\n"
    text = re.split(sections, inspect.cleandoc(doc or ""))[0]
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("    "):
            paragraph = f"\b\n{paragraph}"
        elif paragraph.startswith("- "):
            items = re.split(r"\n(?=- )", paragraph)
            items = [" ".join(item.split()) for item in items]
            # Lists are not wrapped to the terminal.
            filled = [textwrap.fill(i, 78, subsequent_indent="  ") for i in items]
            paragraph = "\b\n" + "\n".join(filled)
        paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def title(doc: str | None) -> str:
    """Return the first line of a docstring.

    >>> title(title.__doc__)
    'Return the first line of a docstring'
    """
    return inspect.cleandoc(doc or "").partition("\n")[0].rstrip(".")
