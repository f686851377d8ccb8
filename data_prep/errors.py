"""The one error that bad input raises."""

from collections.abc import Iterable
from pathlib import Path


class InputError(ValueError):
    """Input that cannot be used as it is.

    The message is one line for the person who gave the input: it names the file or option, what
    was found, what was expected and what to do. The `stforecast` command prints it and exits with
    code 2.
    """


def choose(kind: str, name: str, valid: Iterable[object]) -> InputError:
    """An error that lists the valid names: `choose("service", "nett", ["net", "sms"])`.

    >>> str(choose("service", "nett", ["sms", "net"]))
    "unknown service 'nett'; choose one of: net, sms"
    """
    names = ", ".join(sorted(str(v) for v in valid))
    return InputError(f"unknown {kind} {name!r}; choose one of: {names}")


def no_file(path: Path, what: str, remedy: str) -> InputError:
    """An error for a path where the file that it should name is not.

    >>> str(no_file(Path("traffic.csv"), "table", "give a .csv or .parquet file"))
    'traffic.csv: no table here (found nothing); give a .csv or .parquet file'
    """
    found = "a folder" if path.is_dir() else "nothing"
    return InputError(f"{path}: no {what} here (found {found}); {remedy}")
