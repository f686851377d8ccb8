"""Trentino: SMS, calls and internet activity of Telecom Italia's customers, November-December 2013.

- Published for the Telecom Italia Big Data Challenge: G. Barlacchi et al., "A multi-source dataset
  of urban life in the city of Milan and the Province of Trentino", Scientific Data 2 (2015).
- Records: doi:10.7910/DVN/QLCABU, 62 daily files; grid: doi:10.7910/DVN/FZRVSX. Licence: Open
  Database License (ODbL).
- 6,575 cells of about 1 km, ids from 38 to 11454 with gaps: they number the squares of a rectangle
  around the province, and only the squares inside it are published. Without the grid the ids are
  taken from the data.
- 8,928 intervals of ten minutes from 2013-11-01 00:00 to 2014-01-01 23:50, Europe/Rome, one file
  per local day. There is no daylight-saving change in this period.
- Activity, empty fields and variables are as in `data_prep.sets.milan`.
"""

from __future__ import annotations

from data_prep.download import Dataverse
from data_prep.sets.telecom_italia.release import TelecomItalia

SOURCES = (Dataverse("doi:10.7910/DVN/QLCABU"), Dataverse("doi:10.7910/DVN/FZRVSX"))

TRENTINO = TelecomItalia(
    name="trentino",
    title="Telecommunication activity in Trentino, Telecom Italia, November and December 2013",
    prefix="sms-call-internet-tn-",
    source="doi:10.7910/DVN/QLCABU",
    max_cell=11_466,
)

prepare = TRENTINO.prepare
