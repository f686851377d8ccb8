"""Writing a cube that is larger than memory, a slab of time steps at a time.

The result is the file that `cube.write_cube` would write, but for compression: sums of activity
have random last digits, of which deflate saves a sixth for more than it costs to read a raw day.
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


def write_slabs(
    description: xr.Dataset,
    slabs: Iterable[tuple[int, Mapping[str, np.ndarray]]],
    path: str | os.PathLike[str],
    *,
    steps_per_chunk: int,
) -> Path:
    """Write a cube from a description and its values, whole or not at all.

    Args:
        description: a cube with all its times, cells and attributes. Its values are not looked at:
            let them be broadcast scalars, which take no memory.
        slabs: pairs of the first time step and the values of each variable from there on,
            `(step, cell)`; steps that no slab covers become NaN.
        path: where to.
        steps_per_chunk: time steps stored together; that of a slab is best.

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
        for first, values in slabs:
            for name, variable in variables.items():
                check_finite(values[name], name, times[first:], cells, path)
                variable[first : first + len(values[name])] = values[name]
    return path


def _create(f: h5netcdf.File, name: str, like: xr.DataArray, n_steps: int) -> h5netcdf.Variable:
    """An empty variable with the attributes of `like`, as xarray would have written it."""
    n_cells = like.sizes["cell"]
    n_chunks = -(-n_cells // CELLS_PER_CHUNK)
    chunks = (min(n_steps, like.sizes["time"]), -(-n_cells // n_chunks))
    variable = f.create_variable(name, like.dims, "f8", chunks=chunks, fillvalue=np.nan)
    variable.attrs.update(like.attrs)
    auxiliary = sorted(str(c) for c in like.coords if c not in like.dims)
    if auxiliary:
        variable.attrs["coordinates"] = " ".join(auxiliary)
    return variable
