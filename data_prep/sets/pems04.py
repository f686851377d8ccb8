"""PEMS04: flow, occupancy and speed at 307 loop detectors of Caltrans' district 4, 2018.

- Paper: Guo, Lin, Feng, Song, Wan, "Attention Based Spatial-Temporal Graph Convolutional Networks
  for Traffic Flow Forecasting" (ASTGCN), AAAI 2019; recorded by Caltrans' Performance Measurement
  System (PeMS).
- 16,992 steps of 5 minutes, 2018-01-01 00:00 to 2018-02-28 23:55 local time; 307 detectors.
- Files: `PEMS04.npz` with `data` (16992, 307, 3) and `PEMS04.csv` (from,to,cost), whose sensors are
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
        "https://drive.switch.ch/index.php/s/6nMenRqUe0i6nt8/download",
        name="pems04.zip",
        members=("pems04.npz", "distance.csv"),
    ),
)

PEMS04 = Pems("PEMS04", "2018-01-01", (16992, 307, 3))

read, prepare = PEMS04.read, PEMS04.prepare
