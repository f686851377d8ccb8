"""PEMS-BAY: speeds of 325 loop detectors on the highways of the Bay Area, 2017.

- Paper: Li, Yu, Shahabi, Liu, "Diffusion Convolutional Recurrent Neural Network: Data-Driven
  Traffic Forecasting", ICLR 2018, arXiv 1707.01926, from Caltrans' Performance Measurement System.
- Steps of 5 minutes, 2017-01-01 00:00 to 2017-06-30 23:55; 325 cells (detectors). Cell ids are the
  publisher's sensor ids, as text. The layout is that of METR-LA.
- `speed` in miles per hour. **0 means missing**; zeros are kept as published and marked by
  `zero_is_missing`. 0.02 % are missing (torch-spatiotemporal).
- Road graph: `adjacency`, dimensions `(cell, cell_to)`: DCRNN's Gaussian kernel of the directed
  road distance from `cell` to `cell_to`, 1 on the diagonal, 0 below the threshold 0.1.
- Licence: none stated by the publishers, who share the data for research.
- Trap: the file has 52,116 rows for 181 days of 288 steps (52,128). The difference is an hour, as
  long as the one that the clocks skip on 2017-03-12. Steps of a skipped hour are NaN and need no
  `--allow-gaps`; other missing rows do. The cube's `clock` is `"local"`.
- Trap: `distances_bay_2017.csv` and `graph_sensor_locations_bay.csv` have no header; their columns
  are from, to, cost and sensor_id, latitude, longitude.
- Trap: `adj_mx_bay.pkl` is a pickle, which can run any code when it is loaded; it is never read.
"""

from __future__ import annotations

from functools import partial

from data_prep.cube import write_read
from data_prep.download import Archive, File
from data_prep.sets.roads.dcrnn import Dcrnn

_SENSORS = (
    "https://raw.githubusercontent.com/liyaguang/DCRNN/602afd9d767d3aa1c9b3eac51710d6aeee12c227/"
    "data/sensor_graph"
)

# The records from the mirror of torch-spatiotemporal, because DCRNN's authors link to shared drives
# only; the sensors from the authors, at a fixed commit.
SOURCES = (
    Archive(
        "https://drive.switch.ch/index.php/s/5NPcgGFAIJ4oFcT/download",
        name="pems_bay.zip",
        members=("pems_bay.h5",),
    ),
    File(
        f"{_SENSORS}/distances_bay_2017.csv",
        "distances_bay_2017.csv",
        "sha256:e5feed06bfa1ba4c554a946d0e03d99f2018365eec5a8f28fd8504dea9d082b5",
    ),
    File(
        f"{_SENSORS}/graph_sensor_locations_bay.csv",
        "graph_sensor_locations_bay.csv",
        "sha256:276ee01059610774d4e59572507f7e32eaac21f1f5882fcd9e3d7d426a4b7a6c",
    ),
)

PEMS_BAY = Dcrnn(
    title="PEMS-BAY road speeds",
    year=2017,
    records=("pems-bay.h5", "pems_bay.h5"),
    adjacencies=("pems-bay-adjacency.npz", "distances_bay_2017.csv", "distances_bay.csv"),
    locations=("graph_sensor_locations_bay.csv", "sensor_locations_bay.csv"),
)

read, prepare = PEMS_BAY.read, partial(write_read, PEMS_BAY.read)
