"""Abilene: traffic between the 12 routers of Internet2's backbone, March to September 2004.

- Papers: Zhang, Roughan, Lund, Donoho, "An Information-Theoretic Approach to Traffic Matrix
  Estimation", SIGCOMM 2003; Zhang, Ge, Greenberg, Roughan, "Network Anomography", IMC 2005. Data:
  www.cs.utexas.edu/~yzhang/research/AbileneTM/.
- 24 weeks of 2,016 steps of 5 minutes, 2004-03-01 to 2004-09-10; 144 cells: ordered pairs of
  routers, called `ORIGIN_DESTINATION` by the file `demands`, or numbered from 1 without it.
- Files: `X01.gz` to `X24.gz`. A line is a matrix with five values for each pair. Only the first,
  which was measured, is read; the other four are estimates. A folder of SNDlib's
  `demandMatrix-abilene-*` (`.xml` or `.txt`) can be given instead; it has the same traffic without
  loops.
- `traffic` in Mbit/s, from units of 100 bytes in 5 minutes (100 is the sampling rate). 0 is data.
- Times are taken as UTC; the publisher states no zone. There are days without data between some
  weeks: the steps are NaN, and counted in a warning.
- There is no road graph and no place of a cell, since a cell is a pair of routers.
- Licence: none stated by the publishers.
- Trap: by the publisher's dates, X21 begins on the last day of X20. Both must agree there.
"""

from __future__ import annotations

from data_prep.download import File
from data_prep.sets.matrices import FIRST_DAYS, TrafficMatrices

_PLACE = "https://www.cs.utexas.edu/~yzhang/research/AbileneTM"

SOURCES = tuple(
    File(f"{_PLACE}/{name}", name) for name in (*(f"{week}.gz" for week in FIRST_DAYS), "demands")
)

ABILENE = TrafficMatrices(
    title="Traffic matrices of Abilene",
    source="Y. Zhang, www.cs.utexas.edu/~yzhang/research/AbileneTM/",
    step="5min",
    patterns=("demandMatrix-abilene-*.xml", "demandMatrix-abilene-*.txt"),
    weekly=True,
    advice="give the folder of X01.gz to X24.gz, or of SNDlib's demandMatrix-abilene-*.xml",
)

read, prepare = ABILENE.read, ABILENE.prepare
