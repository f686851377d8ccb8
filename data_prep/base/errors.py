"""The error that bad input raises, and the texts of messages.

A message that names an option of the command does so in `Words`, never in plain text:

    raise InputError(f"{path}: no column of times; ", Words("name it with {time}"))
    log.info("%s: using column %r; %s", path, column, Words("pass {time} for another"))

Its `str` is for Python, where an option is a parameter (`time`); the command writes what
`for_command` and `CommandFormatter` return (`--time`).
"""

from __future__ import annotations

import datetime
import logging
import os
import re
import shlex
import signal as signals
import string
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def escaped(text: str) -> str:
    r"""Return a text whose control characters are escaped: names and units may come from anybody.

    >>> print(escaped("MB\x1b[2J\n"), end="")
    MB\x1b[2J
    """
    # A terminal obeys these instead of showing them; ends of lines and tabs are kept.
    control = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
    return re.sub(control, lambda found: ascii(found[0])[1:-1], text)


def plain(text: str, most: int = 4_000) -> str:
    r"""Return a text as one line without control characters, cut after `most` characters.

    It may quote something that strangers sent.

    >>> print(plain("two\nlines"), plain("a" * 9, most=5))
    two\nlines aaaa…
    """
    line = escaped(text[: most + 1]).replace("\n", r"\n")
    return line if len(line) <= most else line[: most - 1] + "…"


@dataclass(frozen=True)
class _Option:
    """An option of the command, which is a parameter in Python.

    Its value is True or False for a flag, and None if only the name is meant.
    """

    name: str
    value: object = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value!r}"

    @property
    def typed(self) -> str:
        """The option as one types it in a shell."""
        name = self.name.replace("_", "-")
        if self.value is None or isinstance(self.value, bool):
            return f"--no-{name}" if self.value is False else f"--{name}"
        return f"--{name} {shlex.quote(str(self.value))}"


class Words:
    """Text that names options of the command, which are parameters in Python.

    Args:
        template: text with a field for each option: `{lr}`, or `{model:vit}` for one with a value.
        *texts: what replaces the fields without a name.
        **values: values of options that are no text.

    >>> words = Words("give {} {events}, {model:vit} or {batch_size}", "no", batch_size=24)
    >>> str(words)
    "give no events, model='vit' or batch_size=24"
    >>> words.typed
    'give no --events, --model vit or --batch-size 24'
    >>> Words("pass {allow_gaps} and {scale}", allow_gaps=True, scale=False).typed
    'pass --allow-gaps and --no-scale'
    """

    def __init__(self, template: str, *texts: object, **values: object) -> None:
        self.parts: list[object] = []
        rest = iter(texts)
        for text, name, value, _ in string.Formatter().parse(template):
            self.parts.append(text)
            if name:
                self.parts.append(_Option(name, values.get(name, value or None)))
            elif name is not None:
                self.parts.append(next(rest))

    def __str__(self) -> str:
        return "".join(map(str, self.parts))

    def names(self, option: str) -> bool:
        """Return whether the text names an option."""
        return any(isinstance(part, _Option) and part.name == option for part in self.parts)

    @property
    def typed(self) -> str:
        """The text, with options as one types them in a shell."""
        return "".join(str(for_command(part)) for part in self.parts)


class InputError(ValueError):
    """Input that cannot be used.

    The message is one line for the person who gave the input: it names the file or option, what
    was found, what was expected and what to do. The `stforecast` command prints it and exits with
    code 2.

    Args:
        *parts: the message, whose parts that name options are `Words`.

    >>> error = InputError("the loss is nan; ", Words("try a smaller {lr}"))
    >>> str(error)
    'the loss is nan; try a smaller lr'
    >>> error.typed
    'the loss is nan; try a smaller --lr'
    """

    def __init__(self, *parts: str | Words | InputError) -> None:
        self.parts = parts
        super().__init__(escaped("".join(map(str, parts))))

    def names(self, option: str) -> bool:
        """Return whether the message names an option of the command.

        >>> InputError("the loss is nan; ", Words("try a smaller {lr}")).names("lr")
        True
        """
        return any(not isinstance(part, str) and part.names(option) for part in self.parts)

    @property
    def typed(self) -> str:
        """The message, with options as one types them in a shell."""
        return escaped("".join(map(for_command, self.parts)))

    @property
    def offers(self) -> list[str]:
        """Options with values that the message offers; those that stand together are one offer.

        >>> InputError("pass ", Words("{agg:mean} {step:1h} or {sheet}")).offers
        ['--agg mean --step 1h']
        """
        found: list[list[str]] = [[]]
        for piece in _pieces(self.parts):
            if isinstance(piece, _Option) and piece.value is not None:
                found[-1].append(piece.typed)
            elif str(piece).strip():
                found.append([])
        return [" ".join(options) for options in found if options]


def _pieces(parts: Iterable[object]) -> Iterator[object]:
    """Yield the texts and options of parts of a message."""
    for part in parts:
        if isinstance(part, Words | InputError):
            yield from _pieces(part.parts)
        else:
            yield part


def for_command(value: Any) -> Any:
    """Return the text of words or of an error as the user of the command types it.

    Other values are returned unchanged.
    """
    return value.typed if isinstance(value, _Option | Words | InputError) else value


class CommandFormatter(logging.Formatter):
    """Formats log records for users of the command, to whom options are `--lr`, not `lr`."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        record.message = log_text(record)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Return the traceback."""
        return escaped(super().formatException(ei)[:20_000])


def log_text(record: logging.LogRecord) -> str:
    """Return the message of a log record for users of the command, as one line."""
    text, args = str(for_command(record.msg)), record.args
    if isinstance(args, tuple):  # else the one value, a dictionary
        args = tuple(map(for_command, args))
    return plain(text % args if args else text)


def error_text(error: Exception) -> str:
    """Return an error's message for users of the command, with its type if it is a fault of ours.

    >>> error_text(InputError(Words("give another {out}"))), error_text(KeyError("x"))
    ('give another --out', "KeyError: 'x'")
    """
    if isinstance(error, InputError):
        return error.typed
    return plain(f"{type(error).__name__}: {error}")


def choose(kind: str | Words, name: str, valid: Iterable[object]) -> InputError:
    """Return an error that lists the valid names and suggests the closest one.

    >>> str(choose("service", "nett", ["sms", "net"]))
    "unknown service 'nett'; choose one of: net, sms (did you mean 'net'?)"
    """
    names = sorted(str(v) for v in valid)
    listed = ", ".join(names)
    found = f" {name!r}; choose one of: {listed}{close_to(name, names)}"
    return InputError("unknown ", kind, found)


def close_to(name: str, names: Iterable[object]) -> str:
    """Return a suggestion in brackets: the closest of the names, or an empty string.

    >>> close_to("cel", ["time", "Cell", "HOUR"])
    " (did you mean 'Cell'?)"
    """
    from difflib import get_close_matches

    spelt = {str(n).lower(): str(n) for n in names}
    close = get_close_matches(str(name).lower(), spelt, n=1)
    return f" (did you mean {spelt[close[0]]!r}?)" if close else ""


def check_zeros(given: Iterable[str], known: Iterable[str], name: str) -> None:
    """Refuse unknown cells that are known ones without their leading zeros."""
    bare = {cell.lstrip("0"): cell for cell in known}
    for cell in given:
        if whole := bare.get(cell.lstrip("0")):
            raise InputError(
                f"{name}: cell {cell!r} is likely {whole!r} without its leading zeros, which "
                "spreadsheets drop; write all ids with their zeros"
            )


def no_file(path: Path, what: str, remedy: str | Words) -> InputError:
    """Return an error for a path that is not a file.

    >>> str(no_file(Path("traffic.csv"), "table", "give a .csv or .parquet file"))
    'traffic.csv: no table here (found nothing); give a .csv or .parquet file'
    """
    found = "a device or socket" if path.exists() else "nothing"
    if path.is_symlink() and not path.exists():
        found = f"a link to {path.readlink()}, which is not there"
    elif path.is_dir():
        found = "a folder"
    elif path.is_fifo():
        found = "a named pipe"
    return InputError(f"{path}: no {what} here (found {found}); ", remedy)


def check_regular(path: Path, what: str, remedy: str | Words) -> None:
    """Raise if a path exists but is not a file, such as a folder or a dangling link.

    Reading a named pipe would block forever. A path that does not exist is accepted.
    """
    if not path.is_file() and os.path.lexists(path):
        raise no_file(path, what, remedy)


@contextmanager
def reading(origin: object, how: str, remedy: str | Words) -> Iterator[None]:
    """Turn any exception within the context into a one-line error that names the file.

    Parsers raise many types for a damaged file: HDF5 `RuntimeError`, zip archives `EOFError`, deep
    JSON `RecursionError`, absurd sizes `MemoryError`. Keep the context narrow.

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
        cause = f"{origin}: cannot be read {how} ({reason[:200]}); "
        raise InputError(cause, remedy) from e


@contextmanager
def needing(extra: str, what: str | Words, instead: str | Words = "") -> Iterator[None]:
    """Turn a failed import within the context into an error that says which extra to install.

    >>> with needing("onnx", "g.onnx needs a library"):
    ...     import no_such_module
    Traceback (most recent call last):
    data_prep.base.errors.InputError: g.onnx needs a library; pip install 'stforecast[onnx]'
    """
    try:
        yield
    except ImportError as e:
        raise InputError(what, f"; pip install 'stforecast[{extra}]'", instead) from e


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


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural where needed.

    >>> counted(1, "step"), counted(24, "step")
    ('1 step', '24 steps')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def counted_span(low: int, high: int, noun: str) -> str:
    """Return a span of numbers with its noun, or one number if both are equal.

    >>> counted_span(1, 3, "cell"), counted_span(3, 3, "cell")
    ('1 to 3 cells', '3 cells')
    """
    return counted(high, noun) if low == high else f"{low} to {counted(high, noun)}"


def as_text(name: str) -> str:
    r"""Return a file's name as valid Unicode, with bytes that are not UTF-8 escaped.

    >>> as_text("caf\u00e9"), as_text("caf\udce9")
    ('café', 'caf\\xe9')
    """
    return os.fsencode(name).decode(errors="backslashreplace")


def some(items: Iterable[object], n: int = 5) -> str:
    """Return the first `n` items as text, with the total number if there are more.

    >>> some(range(1, 9), 3)
    '1, 2, 3, … (8 in all)'
    """
    names = [plain(str(item)) for item in items]
    return ", ".join(names[:n]) + (f", … ({len(names)} in all)" if len(names) > n else "")


def four_digits(value: float, sign: str = "") -> str:
    """Format a number to four digits, or as a whole number from a thousand on.

    >>> four_digits(0.123456), four_digits(12345.6), four_digits(2.0, "+")
    ('0.1235', '12,346', '+2')
    """
    return f"{value:{sign},.0f}" if abs(value) >= 1000 else f"{value:{sign},.4g}"


def in_minutes(length: datetime.timedelta) -> str:
    """Format a length of time in minutes, whole days in days.

    >>> in_minutes(datetime.timedelta(hours=1)), in_minutes(datetime.timedelta(days=1))
    ('60 minutes', '1 day')
    """
    days = length / datetime.timedelta(days=1)
    if days.is_integer():
        return counted(int(days), "day")
    minutes = length / datetime.timedelta(minutes=1)
    return f"{minutes:g} minutes" if minutes >= 0.1 else f"{60 * minutes:g} seconds"


def slug(text: str) -> str:
    """Convert a text to the name of a file or folder.

    >>> slug("w/o inter")
    'w-o-inter'
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.").lower() or "-"


def shown(path: Path) -> str:
    """Return a path relative to the working folder, or only its name if it lies outside.

    >>> shown(Path.cwd() / "data" / "milan.nc"), shown(Path("/somewhere/else/milan.nc"))
    ('data/milan.nc', 'milan.nc')
    """
    full, here = Path(os.path.realpath(path)), Path.cwd()  # `resolve` fails for a link to itself.
    return full.relative_to(here).as_posix() if full.is_relative_to(here) else path.name
