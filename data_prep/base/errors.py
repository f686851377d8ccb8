"""The error that bad input raises."""

from __future__ import annotations

import functools
import os
import re
import signal as signals
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_REASON = 200
"""Maximum number of characters quoted from a library's error message."""

_NUMPY_SCALAR = re.compile(r"\bnp\.\w+\(('[^']*'|[^'()]*)\)")
"""A NumPy scalar's `repr`, whose type name only distracts the reader of a message."""


class InputError(ValueError):
    """Input that cannot be used.

    The message is one line for the person who gave the input: it names the file or option, what
    was found, what was expected and what to do. The `stforecast` command prints it and exits with
    code 2.

    >>> import numpy as np
    >>> str(InputError(f"column {np.int64(4142)!r}, cell {np.str_('a')!r}"))
    "column 4142, cell 'a'"
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_NUMPY_SCALAR.sub(r"\1", message))


def error_text(error: Exception) -> str:
    """Return an error's message, with its type unless the input is to blame.

    >>> error_text(InputError("give another file")), error_text(KeyError("x"))
    ('give another file', "KeyError: 'x'")
    """
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def choose(kind: str, name: str, valid: Iterable[object]) -> InputError:
    """Return an error that lists the valid names and suggests the closest one.

    >>> str(choose("service", "nett", ["sms", "net"]))
    "unknown service 'nett'; choose one of: net, sms (did you mean 'net'?)"
    """
    names = sorted(str(v) for v in valid)
    listed = ", ".join(names)
    return InputError(f"unknown {kind} {name!r}; choose one of: {listed}{close_to(name, names)}")


def close_to(name: str, names: Iterable[object]) -> str:
    """Return a suggestion in brackets: the closest of the names, or an empty string.

    >>> close_to("cel", ["time", "Cell", "HOUR"])
    " (did you mean 'Cell'?)"
    """
    from difflib import get_close_matches

    spelt = {str(n).lower(): str(n) for n in names}
    close = get_close_matches(str(name).lower(), spelt, n=1)
    return f" (did you mean {spelt[close[0]]!r}?)" if close else ""


def no_file(path: Path, what: str, remedy: str) -> InputError:
    """Return an error for a path that is not a file.

    >>> str(no_file(Path("traffic.csv"), "table", "give a .csv or .parquet file"))
    'traffic.csv: no table here (found nothing); give a .csv or .parquet file'
    """
    return InputError(f"{path}: no {what} here (found {_found_at(path)}); {remedy}")


def check_regular(path: Path, what: str, remedy: str) -> None:
    """Raise if a path exists but is not a file, such as a folder or a dangling link.

    Reading a named pipe would block forever. A path that does not exist is accepted.

    Args:
        path: path of a file, or of a link to one.
        what: description of the file.
        remedy: what to do.

    Raises:
        InputError: if the path is not a file; names what was found.
    """
    if not path.is_file() and os.path.lexists(path):
        raise no_file(path, what, remedy)


def _found_at(path: Path) -> str:
    """Describe what a path that is not a file holds."""
    if path.is_symlink() and not path.exists():
        return f"a link to {path.readlink()}, which is not there"
    if path.is_dir():
        return "a folder"
    if path.is_fifo():
        return "a named pipe"
    return "a device or socket" if path.exists() else "nothing"


@contextmanager
def reading(origin: object, how: str, remedy: str) -> Iterator[None]:
    """Turn any exception within the context into a one-line error that names the file.

    Parsers raise many types for a damaged file: HDF5 `RuntimeError`, zip archives `EOFError`, deep
    JSON `RecursionError`, absurd sizes `MemoryError`. Keep the context narrow.

    Args:
        origin: the file.
        how: such as `"as JSON"`.
        remedy: what to do.

    Raises:
        InputError: for any exception; an `InputError` raised within is passed on unchanged.

    >>> with reading("a.json", "as JSON", "save it again"):
    ...     {}["x"]
    Traceback (most recent call last):
    data_prep.base.errors.InputError: a.json: cannot be read as JSON ('x'); save it again
    """
    try:
        yield
    except InputError:
        raise
    except Exception as e:
        reason = " ".join(str(getattr(e, "strerror", None) or e).split()) or type(e).__name__
        raise InputError(
            f"{origin}: cannot be read {how} ({reason[:LONGEST_REASON]}); {remedy}"
        ) from e


_OPTION = re.compile(r"--(no-)?([a-z][a-z-]*[a-z])(?: (?!and |or |to |of |in |is )([\w.,:]*\w))?")
"""An option of the command line in a message, and the value that follows it, if any."""

_FLAGS = frozenset({"allow-gaps", "tune", "shuffle", "zero-is-missing", "non-negative"})
"""Options without a value that messages name."""

_command_line = False


@contextmanager
def command_line() -> Iterator[None]:
    """Keep the names of options in messages, as within a command."""
    global _command_line
    before, _command_line = _command_line, True
    try:
        yield
    finally:
        _command_line = before


def for_python(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function, so that its errors name parameters of Python, not options.

    Within `command_line`, messages stay as they are.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except InputError as e:
            if not _command_line:
                e.args = (python_names(str(e)),)
            raise

    return called


def python_names(message: str) -> str:
    """Write the options in a message as parameters of Python.

    >>> python_names("choose another --split, or pass --allow-gaps; no --shuffle")
    'choose another split, or pass allow_gaps=True; no shuffle=True'
    >>> python_names("set --batch-size 24, --intervals normalised or another --period")
    "set batch_size=24, intervals='normalised' or another period"
    """

    def named(found: re.Match[str]) -> str:
        no, name, value = found.groups()
        python = name.replace("-", "_")
        if no or name in _FLAGS:
            rest = f" {value}" if value else ""
            return f"{python}={not no}{rest}"
        if not value:
            return python
        plain = value.replace(".", "", 1).isdigit() or value.isupper()
        return f"{python}={value if plain else repr(value)}"

    return _OPTION.sub(named, message)


class Stopped(BaseException):
    """Raised if a signal stops a run that can be resumed; like `KeyboardInterrupt`, no `Exception`.

    Attributes:
        signal: number of the signal; the exit code is 128 more.
        place: progress of the run.
        again: instructions to resume.
    """

    def __init__(self, signal: int, place: str, again: str) -> None:
        super().__init__(signal, place, again)
        self.signal, self.place, self.again = signal, place, again

    def __str__(self) -> str:
        """Describe the stop in one line."""
        return f"stopped by {signals.Signals(self.signal).name} {self.place}; {self.again}"
