"""Milan: SMS, calls and internet activity of Telecom Italia's customers, November-December 2013.

- Published for the Telecom Italia Big Data Challenge: G. Barlacchi et al., "A multi-source dataset
  of urban life in the city of Milan and the Province of Trentino", Scientific Data 2 (2015).
- Records: doi:10.7910/DVN/EGZHFV, 62 daily files, 19.38 GB, 319,896,289 rows; grid:
  doi:10.7910/DVN/QJWLFU. Licence: Open Database License (ODbL).
- 10,000 cells of 235 m, ids 1 to 10000, row by row from the south-west corner: row 1 is the south
  edge. The Duomo is cell 5060.
- 8,928 intervals of ten minutes from 2013-11-01 00:00 to 2014-01-01 23:50, Europe/Rome, one file
  per local day. There is no daylight-saving change in this period.
- Activity is proportional to the number of call detail records and has no physical unit. There is
  one row per country code; these rows are summed. An empty field means that no activity was
  recorded: it is read as 0, and 0 is data, not a missing value.
- Variables: `sms_in`, `sms_out`, `call_in`, `call_out`, `internet` as published; `sms` and `call`,
  the sums in + out, and `net` (internet), as the federated-forecasting papers use them.
"""

from __future__ import annotations

from data_prep.download import Dataverse
from data_prep.sets.telecom_italia.release import TelecomItalia

SOURCES = (Dataverse("doi:10.7910/DVN/EGZHFV"), Dataverse("doi:10.7910/DVN/QJWLFU"))

MILAN = TelecomItalia(
    name="milan",
    title="Telecommunication activity in Milan, Telecom Italia, November and December 2013",
    prefix="sms-call-internet-mi-",
    source="doi:10.7910/DVN/EGZHFV",
    max_cell=10_000,
)

prepare = MILAN.prepare
