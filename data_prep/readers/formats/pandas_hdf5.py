"""Read frames that pandas saved as HDF5 in its fixed format, without PyTables and without pickles.

Numbers and times of a frame are arrays; its texts are pickles, which can run any code when they are
loaded, and are refused. So is the format `table`, whose names of columns are pickles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container
from pathlib import Path

import h5py
import numpy as np
import polars as pl

from data_prep.base.errors import InputError
from data_prep.readers.formats import Format, Part
from data_prep.readers.hdf5 import NUMBER, check_array, open_hdf5, read_array, text_of
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin
from data_prep.readers.table import Table

SAVE = "with DataFrame.to_hdf(path, key='df', format='fixed')"
DATES = r"datetime64(?:\[(s|ms|us|ns)\])?"


class PandasHdf5(Format):
    """The only frame that pandas saved in a file.

    Its index becomes the column `time` if it holds times.
    """

    name, how, suffixes = "pandas-hdf5", "as HDF5", (".h5", ".hdf5")

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the numbers and times of the frame."""
        path = part.path
        with open_hdf5(
            path, "as a frame of pandas", f"save the frame as Parquet, or {SAVE}"
        ) as file:
            columns = _read(file, path)
        return Table(pl.DataFrame(columns), Origin(path.name, "row", 1, is_file=True))


def _read(file: h5py.File, path: Path) -> list[pl.Series]:
    group = find_frame(file, path.name)
    columns: dict[str, pl.Series] = {}
    for i in range(int(group.attrs.get("nblocks", 1))):
        items, values = group[f"block{i}_items"], group[f"block{i}_values"]
        check_labels(items, path.name)
        labels, block = read_labels(items, path.name), _block(values, path.name)
        columns |= {n: pl.Series(n, column) for n, column in zip(labels, block.T, strict=True)}
    order = read_labels(group["axis0"], path.name)
    index = group["axis1"]
    if re.fullmatch(DATES, text_of(index.attrs.get("kind", ""))):
        zone = text_of(index.attrs.get("tz", ""))
        times = pl.Series("time", read_index(index, path.name).astype("datetime64[us]"))
        if zone:
            if not re.fullmatch(r"[A-Za-z0-9_+/-]+", zone):
                raise InputError(
                    f"{path.name}: its zone {zone!r:.40} has no name; save its times in UTC"
                )
            times = times.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
        columns = {"time": times, **{n: columns[n] for n in order if n != "time"}}
    else:
        columns = {name: columns[name] for name in order}
    return list(columns.values())


def _block(values: h5py.Dataset, name: str) -> np.ndarray:
    """Return the columns of one type, `(rows, columns)`."""
    kind = text_of(values.attrs.get("value_type", "")) if isinstance(values, h5py.Dataset) else ""
    if isinstance(values, h5py.Dataset) and values.dtype.kind == "O":
        raise InputError(
            f"{name}: {values.name} holds texts, which pandas pickles, and a pickle can run any "
            "code when it is loaded; save the frame with DataFrame.to_parquet(path)"
        )
    array = read_array(values, name)
    if (unit := re.fullmatch(DATES, kind)) and array.dtype.kind == "i":
        return array.astype(f"datetime64[{unit[1] or 'ns'}]").astype("datetime64[us]")
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise InputError(
            f"{name}: {values.name} is {array.dtype} of shape {array.shape}, expected numbers of "
            "rows and columns; save the frame with DataFrame.to_parquet(path)"
        )
    return array


def find_frame(file: h5py.File, name: str) -> h5py.Group:
    """Return the only frame of a file in the fixed format."""
    groups = {key: item for key, item in file.items() if isinstance(item, h5py.Group)}
    kinds = {key: text_of(item.attrs.get("pandas_type", "")) for key, item in groups.items()}
    frames = [key for key, kind in kinds.items() if kind == "frame"]
    if len(frames) != 1:
        raise InputError(
            f"{name}: {len(frames)} frames in pandas' fixed format among {kinds or 'no groups'}, "
            f"expected one; save it {SAVE}"
        )
    return file[frames[0]]


def check_labels(axis: h5py.Dataset, name: str) -> None:
    """Refuse labels that may be pickles."""
    if axis.dtype.kind not in "Siu":
        raise InputError(
            f"{name}: {axis.name} holds {axis.dtype}, which may be pickled, and a pickle can run "
            "any code when it is loaded; save the frame again with text or integer labels"
        )
    check_array(axis, name, 128)  # bytes of memory for a label


def read_labels(axis: h5py.Dataset, name: str) -> list[str]:
    """Return labels as text; refuse repeated ones."""
    labels = [text_of(label) for label in read_array(axis, name).ravel()]
    if odd := [label for label in labels if not label.isprintable()]:
        raise InputError(f"{name}: {axis.name} has the label {odd[0]!r}; save it under another")
    repeated = [label for label, count in Counter(labels).items() if count > 1]
    if repeated:
        raise InputError(
            f"{name}: {axis.name} has {repeated[0]} more than once; rename or merge them"
        )
    return labels


def read_index(axis: h5py.Dataset, name: str) -> np.ndarray:
    """Return the times of an index, `(rows,)` datetime64; those with a zone are in UTC."""
    kind = text_of(axis.attrs.get("kind", ""))
    unit = re.fullmatch(DATES, kind)
    if not unit or axis.dtype.kind != "i":
        raise InputError(
            f"{name}: {axis.name} is {axis.dtype} of kind {kind!r}, expected datetime64; set the "
            "column of times as index and save it again"
        )
    check_array(axis, name, NUMBER)
    return np.asarray(read_array(axis, name), f"datetime64[{unit[1] or 'ns'}]")
