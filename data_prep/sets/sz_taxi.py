"""SZ-taxi: speeds of taxis on 156 main roads of Luohu, Shenzhen, January 2015.

- Paper: Zhao et al., "T-GCN: A Temporal Graph Convolutional Network for Traffic Prediction", IEEE
  T-ITS 21(9), 2020, arXiv 1811.05320.
- 2,976 steps of 15 minutes, 2015-01-01 00:00 to 2015-01-31 23:45, Asia/Shanghai; 156 cells. Cell
  ids are the publisher's road ids, as text.
- `speed`: mean speed of the taxis on the road. Its unit is not stated, so it is `"1"` in the cube.
- Files: `sz_speed.csv`, a column for each road and a row for each step, without times;
  `sz_adj.csv`, a 156 × 156 matrix of 0 and 1 without a header.
- Road graph: `adjacency`, dimensions `(cell, cell_to)`, as published: 532 roads that meet, none on
  the diagonal, not symmetric.
- Positions are not published. Licence: none stated by the publishers.
- Trap: whether 0 means "no taxi" is not stated; zeros stay zeros, as in the paper's errors, unless
  `--zero-is-missing` is given.
"""

from __future__ import annotations

from functools import partial

from data_prep.cube import write_read
from data_prep.download import File
from data_prep.sets.roads.tgcn import DATA, Tgcn

SOURCES = (
    File(f"{DATA}/sz_speed.csv", "sz_speed.csv"),
    File(
        f"{DATA}/sz_adj.csv",
        "sz_adj.csv",
        "sha256:4e40e865b29d73df8404f6cc4c1a0c5ba55aa575aef97a4e9ce4fcd30aad16d6",
    ),
)

SZ_TAXI = Tgcn(
    title="SZ-taxi road speeds",
    prefix="sz",
    start="2015-01-01",
    step="15min",
    units="1",
    long_name="mean speed of the taxis, in a unit that is not stated",
    time_zone="Asia/Shanghai",
)

read, prepare = SZ_TAXI.read, partial(write_read, SZ_TAXI.read)
