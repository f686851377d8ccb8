"""What server and nodes read from the app's configuration, and the nodes' data."""

import tempfile
from pathlib import Path

from data_prep.city.simulate import simulate
from data_prep.cube import open_cube, write_cube
from data_prep.sets.milan import prepare
from stforecast.federated.nodes.membership import Patience
from stforecast.flower.settings import RunSettings
from stforecast.forecasting.config import resolve

DAYS, SPLIT = 28, "days:20,3,5"
"""Length of the data, and their training, validation and test days."""


def settings_of(values):
    """Return the settings of the run from `[tool.flwr.app.config]`."""
    config = resolve(
        "fuels",
        service="internet",
        split=SPLIT,
        device="cpu",
        rounds=int(values["rounds"]),
        hidden_size=int(values["hidden-size"]),
        lr=float(values["lr"]),
        seed=int(values["seed"]),
    )
    # The data are invented, so any node may join at any SuperLink.
    patience, results = Patience(start=600, answer=600), str(values["results"])
    return RunSettings(config, int(values["cells"]), patience, results, unsafe_open=True)


def data_of(values, part, parts):
    """Return the cube of a node and the number of its first cell; it is simulated if absent.

    The `cells` are divided evenly among `parts` nodes.
    """
    cells = int(values["cells"])
    first, end = (part * cells // parts, (part + 1) * cells // parts)
    path = Path(values["data"]) / f"cells-{first}-to-{end - 1}-of-{cells}.nc"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            raw, city = Path(folder) / "raw", Path(folder) / "city.nc"
            simulate(raw, cells=cells, days=DAYS, seed=1)
            prepare(raw, city)
            with open_cube(city) as cube:
                write_cube(cube.isel(cell=slice(first, end)).load(), path)
    return path, first
