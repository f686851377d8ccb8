"""PEMS08: flow, occupancy and speed at 170 loop detectors of Caltrans' district 8, 2016.

- Paper: Guo, Lin, Feng, Song, Wan, "Attention Based Spatial-Temporal Graph Convolutional Networks
  for Traffic Flow Forecasting" (ASTGCN), AAAI 2019; recorded by Caltrans' Performance Measurement
  System (PeMS).
- 17,856 steps of 5 minutes, 2016-07-01 00:00 to 2016-08-31 23:55 local time; 170 detectors.
- Files: `PEMS08.npz` with `data` (17856, 170, 3) and `PEMS08.csv` (from,to,cost), whose sensors are
  numbered from 0 in the order of the records. Cell ids are these numbers, as text.
- `flow`: vehicles in 5 minutes. `occupancy`: share of the time. `speed`: miles per hour.
- Gaps were filled by the publishers. Zeros stay zeros; most papers leave targets of 0 out of their
  errors, for which `--zero-is-missing` is meant.
- Road graph: `adjacency`, dimensions `(cell, cell_to)`: 1 where the list has a road from `cell` to
  `cell_to`, and on the diagonal, as the papers use the list.
- Positions and licence are not published.
"""

from __future__ import annotations

from data_prep.download import Archive
from data_prep.sets.roads.pems import Pems

# The mirror of torch-spatiotemporal, because the authors link to a shared drive only.
SOURCES = (
    Archive(
        "https://drive.switch.ch/index.php/s/X0nkiDgb8oacOD0/download",
        name="pems08.zip",
        members=("pems08.npz", "distance.csv"),
    ),
)

PEMS08 = Pems("PEMS08", "2016-07-01", (17856, 170, 3))

read, prepare = PEMS08.read, PEMS08.prepare
