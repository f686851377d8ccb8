"""A lock on a folder, so that one process at a time writes results to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from data_prep.lock import file_lock
from stforecast.federated.runs.run_folder import check_folder, writing

LOCK = ".lock"
"""Name of the file that is locked; it contains the process's id."""


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the lock of a folder within the context.

    A folder that is created for it and stays empty is removed. A warning is logged if the file
    system has no locks.

    Args:
        out: the folder; created if missing.

    Raises:
        InputError: if another process has the lock, or the folder cannot be written.
    """
    check_folder(out)
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    with ExitStack() as stack:
        stack.callback(_remove_empty, made)
        with writing(out, "choose another --out"):
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(out / LOCK, out))
        yield


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):  # Raised for a folder that is not empty.
        for folder in folders:
            folder.rmdir()
