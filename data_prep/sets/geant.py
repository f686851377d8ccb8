"""GÉANT: traffic between the 23 routers of Europe's research network, January to April 2005.

- Paper: Uhlig, Quoitin, Lepropre, Balon, "Providing Public Intradomain Traffic Matrices to the
  Research Community", ACM SIGCOMM Computer Communication Review 36(1), 2006.
- 10,772 matrices of 15 minutes, 2005-01-01 to 2005-04-29. Cells are ordered pairs of routers,
  `ORIGIN_DESTINATION`; the publishers replaced the routers' names by numbers.
- Files: `IntraTM-2005-01-01-00-15.xml` and so on, in TOTEM's XML, from an archive that `tar xjf`
  unpacks. A folder of SNDlib's `demandMatrix-geant-*` (`.xml` or `.txt`) can be given instead. It
  has four other months, 2005-05-04 to 2005-08-31, between 22 routers with names; its values are
  multiplied by a secret factor.
- `traffic` in Mbit/s. A pair that a matrix leaves out has no traffic; a matrix without any traffic
  is missing, as are steps without a file. They are NaN, and counted in a warning.
- Times are taken as UTC; the publishers state no zone.
- There is no road graph and no place of a cell, since a cell is a pair of routers.
- Licence: none stated; the publishers ask to cite the paper.
"""

from __future__ import annotations

from data_prep.download import File
from data_prep.sets.matrices import TOTEM, TrafficMatrices

_ARCHIVE = "traffic-matrices-anonymized-v2.tar.bz2"

SOURCES = (File(f"https://totem.run.montefiore.uliege.be/files/data/{_ARCHIVE}", _ARCHIVE),)

GEANT = TrafficMatrices(
    title="Traffic matrices of GÉANT",
    source="TOTEM, ACM SIGCOMM Computer Communication Review 36(1), 2006",
    step="15min",
    patterns=(TOTEM, "demandMatrix-geant-*.xml", "demandMatrix-geant-*.txt"),
    weekly=False,
    advice=(
        f"unpack {_ARCHIVE} with tar xjf and give its folder traffic-matrices, or one of SNDlib's "
        "demandMatrix-geant-*.xml"
    ),
)

read, prepare = GEANT.read, GEANT.prepare
