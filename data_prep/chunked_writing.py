"""Write a cube that is larger than memory, one chunk of time steps at a time.

The result equals that of `cube.write_cube`, but without compression: the last digits of summed
activity are random, so deflate saves only a sixth and takes longer than reading a raw day.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import h5netcdf
import numpy as np
import xarray as xr

from data_prep.atomic import atomic_path
from data_prep.cube import check_cube, check_finite
from data_prep.netcdf import dump, netcdf_target

CELLS_PER_CHUNK = 1024


def write_chunks(
    description: xr.Dataset,
    chunks: Iterable[tuple[int, Mapping[str, np.ndarray]]],
    path: str | os.PathLike[str],
    *,
    steps_per_chunk: int,
) -> Path:
    """Write a cube atomically from a description and chunks of values.

    Args:
        description: a cube with all its times, cells and attributes. Its values are ignored; use
            broadcast scalars, which take no memory.
        chunks: pairs of the first time step and the values of each variable from there on,
            `(step, cell)`; steps that no chunk covers become NaN.
        path: file to write.
        steps_per_chunk: time steps of a chunk in the file, ideally those of a chunk of values.

    Returns:
        `path`.
    """
    path = Path(path)
    check_cube(description, str(path))
    names = [str(name) for name, v in description.data_vars.items() if v.dims == ("time", "cell")]
    times, cells = description.indexes["time"], description["cell"].to_numpy()
    with atomic_path(path) as part, netcdf_target(part) as f:
        dump(description.drop_vars(names), f)
        f.attrs.pop("coordinates", None)  # xarray names them here when no variable can
        variables = {n: _create(f, n, description[n], steps_per_chunk) for n in names}
        for first, values in chunks:
            for name, variable in variables.items():
                check_finite(values[name], name, times[first:], cells, path)
                variable[first : first + len(values[name])] = values[name]
    return path


def _create(f: h5netcdf.File, name: str, like: xr.DataArray, n_steps: int) -> h5netcdf.Variable:
    """Create an empty variable with the attributes of `like`, as xarray writes it."""
    n_cells = like.sizes["cell"]
    n_chunks = -(-n_cells // CELLS_PER_CHUNK)
    shape = (min(n_steps, like.sizes["time"]), -(-n_cells // n_chunks))
    variable = f.create_variable(
        name, like.dims, "f8", chunks=shape, fillvalue=np.nan, fletcher32=True
    )
    variable.attrs.update(like.attrs)
    auxiliary = sorted(str(c) for c in like.coords if c not in like.dims)
    if auxiliary:
        variable.attrs["coordinates"] = " ".join(auxiliary)
    return variable
