"""PEMS07: flow at 883 loop detectors of Caltrans' district 7, 2017.

- Paper: Song, Lin, Guo, Wan, "Spatial-Temporal Synchronous Graph Convolutional Networks" (STSGCN),
  AAAI 2020; recorded by Caltrans' Performance Measurement System (PeMS).
- 28,224 steps of 5 minutes from 2017-05-01 00:00 local time; 883 detectors.
- Files: `PEMS07.npz` with `data` (28224, 883, 1) and `PEMS07.csv` (from,to,cost), whose sensors are
  numbered from 0 in the order of the records. Cell ids are these numbers, as text.
- `flow`: vehicles in 5 minutes.
- Gaps were filled by the publishers. Zeros stay zeros; most papers leave targets of 0 out of their
  errors, for which `--zero-is-missing` is meant.
- Road graph: `adjacency`, dimensions `(cell, cell_to)`: 1 where the list has a road from `cell` to
  `cell_to`, and on the diagonal, as the papers use the list.
- Positions and licence are not published.
- Trap: the papers give the period as 2017-05-01 to 2017-08-31, 123 days, but there are steps for
  98. Times are counted from the first day, so dates and weekdays may be wrong after an unknown gap.
"""

from __future__ import annotations

from data_prep.download import Archive
from data_prep.sets.roads.pems import Pems

# The mirror of torch-spatiotemporal, because the authors link to a shared drive only.
SOURCES = (
    Archive(
        "https://drive.switch.ch/index.php/s/rLQzOhOFF2jIBAk/download",
        name="pems07.zip",
        members=("pems07.npz", "distance.csv"),
    ),
)

PEMS07 = Pems("PEMS07", "2017-05-01", (28224, 883, 1))

read, prepare = PEMS07.read, PEMS07.prepare
