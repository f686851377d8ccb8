"""PEMS03: flow at 358 loop detectors of Caltrans' district 3, 2018.

- Paper: Song, Lin, Guo, Wan, "Spatial-Temporal Synchronous Graph Convolutional Networks" (STSGCN),
  AAAI 2020; recorded by Caltrans' Performance Measurement System (PeMS).
- 26,208 steps of 5 minutes, 2018-09-01 00:00 to 2018-11-30 23:55 local time; 358 detectors.
- Files: `PEMS03.npz` with `data` (26208, 358, 1), `PEMS03.csv` (from,to,distance) and `PEMS03.txt`,
  the sensors' ids in the order of the records. `PEMS03.csv` uses these ids. Without them, cells are
  numbered from 0, which does not fit the distances.
- `flow`: vehicles in 5 minutes.
- Gaps were filled by the publishers. Zeros stay zeros; most papers leave targets of 0 out of their
  errors, for which `--zero-is-missing` is meant.
- Road graph: `adjacency`, dimensions `(cell, cell_to)`: 1 where the list has a road from `cell` to
  `cell_to`, and on the diagonal, as the papers use the list.
- Positions and licence are not published.
- Trap: every day has 288 steps, also 2018-11-04, on which the clocks were set back. Steps are even
  local times, never localised: the cube's `clock` is `"local"`.
"""

from __future__ import annotations

from data_prep.download import Archive
from data_prep.sets.roads.pems import Pems

# The mirror of torch-spatiotemporal, because the authors link to a shared drive only.
SOURCES = (
    Archive(
        "https://drive.switch.ch/index.php/s/z4cMrY19EMN7AZA/download",
        name="pems03.zip",
        members=("pems03.npz", "distances.csv", "index.txt"),
    ),
)

PEMS03 = Pems("PEMS03", "2018-09-01", (26208, 358, 1))

read, prepare = PEMS03.read, PEMS03.prepare
