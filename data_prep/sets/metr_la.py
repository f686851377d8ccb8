"""METR-LA: speeds of 207 loop detectors on the highways of Los Angeles County, 2012.

- Paper: Li, Yu, Shahabi, Liu, "Diffusion Convolutional Recurrent Neural Network: Data-Driven
  Traffic Forecasting", ICLR 2018, arXiv 1707.01926; recorded by the highway detectors that
  Jagadish et al., "Big Data and Its Technical Challenges", CACM 57(7), 2014, describe.
- 34,272 steps of 5 minutes, 2012-03-01 00:00 to 2012-06-27 23:55; 207 cells (detectors). Cell ids
  are the publisher's sensor ids, as text.
- `speed` in miles per hour. **0 means missing** (8.11 %); zeros are kept as published and marked
  by `zero_is_missing`.
- Road graph: `adjacency`, dimensions `(cell, cell_to)`: DCRNN's Gaussian kernel of the directed
  road distance from `cell` to `cell_to`, 1 on the diagonal, 0 below the threshold 0.1.
- Licence: none stated by the publishers, who share the data for research.
- Trap: times are Los Angeles wall-clock times without daylight saving: steps stay even through the
  change on 2012-03-11. They must not be localised, so the cube's `clock` is `"local"`.
- Trap: some copies have interpolated gaps; they hold no zeros and pose a different task.
- Trap: `adj_mx.pkl` is a pickle, which can run any code when it is loaded; it is never read.
"""

from __future__ import annotations

from functools import partial

from data_prep.cube import write_read
from data_prep.download import Archive
from data_prep.sets.roads.dcrnn import Dcrnn

# The mirror of torch-spatiotemporal, because DCRNN's authors link to shared drives only.
SOURCES = (
    Archive(
        "https://drive.switch.ch/index.php/s/Z8cKHAVyiDqkzaG/download",
        members=("metr_la.h5", "distances_la.csv", "sensor_locations_la.csv"),
    ),
)

METR_LA = Dcrnn(
    title="METR-LA road speeds",
    year=2012,
    records=("metr-la.h5", "metr_la.h5"),
    adjacencies=("metr-la-adjacency.npz", "distances_la_2012.csv", "distances_la.csv"),
    locations=("graph_sensor_locations.csv", "sensor_locations_la.csv"),
)

read, prepare = METR_LA.read, partial(write_read, METR_LA.read)
