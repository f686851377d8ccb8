"""A lock on a folder that one process at a time may write results to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from data_prep.lock import file_lock
from stforecast.federated.runs.run_folder import check_folder, writing

LOCK = ".lock"
"""Name of the file that is locked; it names the process."""


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Within the context no other process gets the lock of the folder.

    A folder that is made for it and stays empty is removed again. A file system without locks is
    told of in a warning.

    Args:
        out: the folder; made if it is not there.

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
    with suppress(OSError):  # The last one says that a folder is not empty.
        for folder in folders:
            folder.rmdir()
