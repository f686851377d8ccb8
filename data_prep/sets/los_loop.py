"""Los-loop: speeds of METR-LA's 207 detectors in its first week, gaps filled.

- Paper: Zhao et al., "T-GCN: A Temporal Graph Convolutional Network for Traffic Prediction", IEEE
  T-ITS 21(9), 2020, arXiv 1811.05320.
- 2,016 steps of 5 minutes, 2012-03-01 00:00 to 2012-03-07 23:55; 207 cells. Cell ids are METR-LA's
  sensor ids, as text. T-GCN's authors filled METR-LA's gaps by linear interpolation.
- `speed` in miles per hour, 1 to 70; no zeros.
- Files: `los_speed.csv`, a column for each sensor and a row for each step, without times;
  `los_adj.csv`, a 207 × 207 matrix without a header.
- Road graph: `adjacency`, dimensions `(cell, cell_to)`, as published: symmetric, 2,833 entries,
  1 on the diagonal. It is not METR-LA's matrix.
- Positions: METR-LA's `graph_sensor_locations.csv`, if it is beside the speeds.
- Licence: none stated by the publishers.
- Trap: the filled gaps make this another task than METR-LA; errors of the two cannot be compared.
"""

from __future__ import annotations

from functools import partial

from data_prep.cube import write_read
from data_prep.download import File
from data_prep.sets.roads.tgcn import DATA, Tgcn

SOURCES = (
    File(
        f"{DATA}/los_speed.csv",
        "los_speed.csv",
        "sha256:7b732d86ae32b2930595becba28aff39dacbfb2197e250fc0332e1744ce2cbf4",
    ),
    File(
        f"{DATA}/los_adj.csv",
        "los_adj.csv",
        "sha256:7a6eb41e10677992b5af50f5ab187c6c05c5c3a92cb973950cfddbf857361e76",
    ),
)

LOS_LOOP = Tgcn(
    title="Los-loop road speeds",
    prefix="los",
    start="2012-03-01",
    step="5min",
    units="mile/hour",
    long_name="mean speed of the vehicles",
    time_zone="America/Los_Angeles",
)

read, prepare = LOS_LOOP.read, partial(write_read, LOS_LOOP.read)
