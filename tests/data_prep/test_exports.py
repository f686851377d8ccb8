"""A corpus of exports as operators, roads, metros and pedestrian portals publish them, with truths.

Each is read to the last value, or refused with one line whose option works when it is obeyed.
"""

import datetime
import gzip
import io
import json
import logging
import lzma
import re
import shlex
import zipfile

import numpy as np
import openpyxl
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mentions import mentions

from data_prep.base.errors import InputError, Words
from data_prep.cube import open_cube
from data_prep.preparation import open_again, preparation_of
from data_prep.readers.units import canonical, scale_of
from data_prep.sets.table import read
from stforecast.cli.main import cli
from stforecast.data.cubes import open_cube as open_any

CASES = {}
"""Writers of exports by name; each returns the path and its truth."""

HOURS = pd.date_range("2024-05-10", periods=72, freq="h")
LTE = {"DL Traffic (GB)": 1, "Users": 0}


class Truth:
    """What a cube must hold: values of services, each (time, cell)."""

    def __init__(self, services, cells, times=HOURS, obey=None):
        rng = np.random.default_rng(7)
        shape = len(times), len(cells)
        self.values = {
            name: pd.DataFrame(rng.uniform(2000, 9000, shape).round(digits), times, cells)
            for name, digits in services.items()
        }
        self.cells, self.times, self.obey = [str(cell) for cell in cells], times, obey

    @property
    def long(self):
        """A row for each time and cell: time, cell and the services."""
        frames = [f.stack().rename(name) for name, f in self.values.items()]
        return pd.concat(frames, axis=1).rename_axis(["time", "cell"]).reset_index()

    @property
    def wide(self):
        return next(iter(self.values.values()))

    def check(self, ds):
        assert sorted(ds["cell"].values.astype(str)) == sorted(self.cells)
        np.testing.assert_array_equal(ds["time"].values, self.times.as_unit("ns"))
        assert set(ds.data_vars) == set(self.values)
        for name, frame in self.values.items():
            found = ds[name].to_pandas()
            found.columns = found.columns.astype(str)
            np.testing.assert_allclose(found[self.cells].to_numpy(), frame.to_numpy(), rtol=1e-12)


def case(*variants):
    """Add a writer of `(folder, *variant)` to the corpus, once for each variant."""

    def add(write):
        for i, variant in enumerate(variants or [()]):
            CASES[f"{write.__name__}-{i}" if variants else write.__name__] = (write, variant)
        return write

    return add


def save(folder, text, name="export.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def number(value, style="."):
    """Write a number: with a point, a decimal comma, or thousands separated as well."""
    text = f"{value:,.10f}".rstrip("0").rstrip(".")
    plain = text.replace(",", "")
    return {
        ".": plain,
        ",": plain.replace(".", ","),
        "1.000,5": text.translate(str.maketrans(",.", ".,")),
        "1,000.5": text,
        "1 000,5": text.replace(",", "\N{NO-BREAK SPACE}").replace(".", ","),
        "1'000.5": text.replace(",", "'"),
        "e": f"{value:.4E}",
        ",e": f"{value:.4E}".replace(".", ","),
    }[style]


def lines(truth, head, row, sep=",", style="."):
    """Join a header and a line for each row of a long table, made by `row(time, cell)`."""
    out = [sep.join(head)]
    for time, cell, *values in truth.long.itertuples(index=False):
        fields = [*row(time, cell), *(number(v, style) for v in values)]
        out.append(sep.join(f'"{f}"' if sep in f else f for f in fields))
    return "\n".join(out) + "\n"


@case(
    ("%m/%d/%Y %H:%M:%S", "utf-8"),
    ("%Y-%m-%d %H:%M:%S DST", "utf-8-sig"),
    ("%Y-%m-%d %H:%M", "gb18030"),
)
def huawei(folder, form, encoding):
    """Titles above, a period, names of network elements, a note below."""
    site = "站点" if encoding == "gb18030" else "SITE"
    truth = Truth(LTE, [f"{site}{i}_1" for i in range(3)])
    head = ["Start Time", "Period(min)", "NE Name", "Cell Name", *LTE]
    text = lines(truth, head, lambda t, c: [t.strftime(form), "60", f"eNB,{c[:-2]}", c])
    text = f'Report name: LTE cells\nExport time: 2024-05-14 09:00\n\n{text}"Total 216 records"\n'
    return save(folder, text, encoding=encoding), truth


@case((";", ","), (";", "1.000,5"), ("\t", ","), ("|", "1 000,5"))
def nokia(folder, sep, style):
    """A German front end: date and time apart, decimal commas, a row of sums, cp1252."""
    truth = Truth({"Verkehr (GB)": 1, "Nutzer": 0}, ["Köln_1", "Köln_2"])
    head = ["Datum", "Uhrzeit", "Zellname", *truth.values]
    text = lines(truth, head, lambda t, c: [f"{t:%d.%m.%Y}", f"{t:%H:%M}", c], sep, style)
    return save(folder, text + sep.join(["Summe", "", "", "99,5", "7"]) + "\n",
                encoding="cp1252"), truth  # fmt: skip


@case(("utf-16",), ("utf-16-le",), ("utf-8",))
def ericsson(folder, encoding):
    """Date and hour in numbers, counters, tabs, UTF-16."""
    truth = Truth({"pmPdcpVolDlDrb": 0, "pmRrcConnLevSum": 0}, ["ERB1-A", "ERB1-B"])
    head = ["DATE_ID", "HOUR_ID", "EUtranCellFDD", *truth.values]
    text = lines(truth, head, lambda t, c: [f"{t:%Y-%m-%d}", str(t.hour), c], "\t")
    return save(folder, text, "export.txt", encoding), truth


@case(("1,000.5",), ("1'000.5",))
def zte(folder, style):
    """Begin and end of each period, an index, quoted thousands, a row of the names again."""
    truth = Truth({"PRB Usage(%)": 2, "Throughput(Mbps)": 3}, ["101", "102"])
    head = ["Index", "Begin Time", "End Time", "Granularity", "Cell ID", "Cell", *truth.values]
    hour = pd.Timedelta("1h")
    text = lines(
        truth,
        head,
        lambda t, c: ["1", f"{t:%Y-%m-%d %H:%M:%S}", f"{t + hour:%Y-%m-%d %H:%M:%S}", "1 hour",
                      c, f"cell{c}"],
        style=style,
    )  # fmt: skip
    rows = text.splitlines()
    rows.insert(50, rows[0])
    truth.cells = ["cell101", "cell102"]
    for name, frame in truth.values.items():
        truth.values[name] = frame.set_axis(truth.cells, axis="columns")
    return save(folder, "\n".join(rows) + "\n"), truth


@case()
def samsung_site_and_sector(folder):
    """Cells are numbered within sites."""
    truth = Truth({"DL Volume (MB)": 1}, ["A/1", "A/2", "B/1", "B/2"])
    text = lines(truth, ["time", "eNodeB Name", "LocalCell Id", *truth.values],
                 lambda t, c: [str(t), *c.split("/")])  # fmt: skip
    return save(folder, text), truth


@case(*((i,) for i in range(25)))
def dates(folder, i):
    """One column of times in many forms."""
    truth = Truth({"value": 1}, ["n"])
    written = [
        lambda t: f"{t:%d/%m/%Y %H:%M}",
        lambda t: f"{t:%m/%d/%Y %I:%M %p}",
        lambda t: f"{t:%Y/%m/%d %H:%M}",
        lambda t: f"{t:%d.%m.%y %H:%M:%S}",
        lambda t: f"{t:%d-%b-%Y %H:%M}",
        lambda t: f"{t:%d-%b-%y %I:%M:%S %p}",
        lambda t: f"{t:%Y%m%d%H%M}",
        lambda t: f"{t:%Y-%m-%dT%H:%M:%SZ}",
        lambda t: str(int(t.timestamp())),
        lambda t: str(int(t.timestamp() * 1000)),
        lambda t: f"{t:%d.%m.%Y %H:%M} - {t + pd.Timedelta('1h'):%d.%m.%Y %H:%M}",
        lambda t: f"{t:%d.%m.%Y} {t:%H:%M}".replace(" 00:00", " 00:00"),
        lambda t: (
            f"{['lun.', 'mar.', 'mer.', 'jeu.', 'ven.', 'sam.', 'dim.'][t.weekday()]} {t.day} mai "
            f"{t.year} {t.hour}h{t:%M}"
        ),
        lambda t: f"viernes, {t.day} de mayo de {t.year} {t:%I}:{t:%M} {t:%p}".replace(
            "AM", "a. m."
        ).replace("PM", "p. m."),
        lambda t: f"Fr, {t.day}. Mai {t.year} {t:%H} Uhr",
        lambda t: f"{t.year}年{t.month}月{t.day}日 {t:%H}时",
        lambda t: f"{t:%Y/%m/%d %H:%M}-{t + pd.Timedelta('1h'):%H:%M}",
        lambda t: f"{t:%d/%m/%Y %H:%M} ~ {t + pd.Timedelta('1h'):%H:%M}",
        lambda t: f"{t:%d/%m/%Y %Hh%M}",
        lambda t: f"{t:%d-%b-%y %I.%M.%S.000000 %p}".upper(),
        lambda t: f"{t:%d-%b-%y %H.%M.%S}".upper(),
        lambda t: f"{t:%d%b%Y:%H:%M:%S}".upper(),
        lambda t: f"{t:%Y-%m-%d %H:%M:%S} UTC",
        lambda t: f"{t + pd.Timedelta('2h'):%Y-%m-%dT%H:%M}+02:00[Europe/Berlin]",
        lambda t: str(int(t.timestamp() * 1_000_000)),
    ][i]
    rows = [f"{written(t)};{number(v, ',')}" for t, v in truth.wide["n"].items()]
    return save(folder, "\n".join(["Zeit;n", *rows]) + "\n"), truth


@case(("gbk",), ("utf-16",))
def huawei_in_chinese(folder, encoding):
    """Few characters beyond ASCII, whose bytes are letters of cp1252, too."""
    truth = Truth({"下行流量(GB)": 1, "用户数": 0}, ["海淀-1", "海淀-2", "国贸-1"])
    head = ["开始时间", "周期(分钟)", "网元名称", "小区名称", *truth.values]
    text = lines(truth, head, lambda t, c: [f"{t:%Y/%m/%d %H:%M}", "60", c[:-2], c])
    return save(folder, text, encoding=encoding), truth


@case()
def korean_gates(folder):
    """Two bytes for each character, which are Chinese ones, too; an hour with its own mark."""
    truth = Truth({"승차인원": 0, "하차인원": 0}, ["서울역", "강남"])
    text = lines(truth, ["일시", "역명", *truth.values],
                 lambda t, c: [f"{t.year}년 {t.month}월 {t.day}일 {t:%H}시", c])  # fmt: skip
    return save(folder, text, encoding="euc_kr"), truth


@case((".csv.xz", "1.000,5"), (".txt.gz", "1.000,5"), (".CSV", "1.000,5"), (".csv", "1,000.5"))
def gates_with_marks_between_thousands(folder, ending, style):
    """Whole numbers as in Italy, where 1.234 is a thousand and more, or as in Britain."""
    truth = Truth({"Ingressi": 0, "Uscite": 0}, ["Duomo", "Zara"])
    for name in truth.values:
        truth.values[name] -= 1990 + 700 * (name == "Uscite")
        truth.values[name] = truth.values[name].clip(lower=1)
    text = lines(truth, ["Data", "Fascia oraria", "Stazione", *truth.values],
                 lambda t, c: [f"{t:%d/%m/%Y}", f"{t:%H:%M}-{t.hour + 1:02}:00", c],
                 ";", style)  # fmt: skip
    opener = {".csv.xz": lzma.compress, ".txt.gz": gzip.compress}.get(ending, bytes)
    path = folder / f"gates{ending}"
    path.write_bytes(opener(text.encode()))
    return path, truth


@case(("point",), ("comma",))
def points_that_need_an_answer(folder, mark):
    """A few points before three digits, beside whole numbers: the message has both options."""
    truth = Truth({"value": 0}, ["n"], obey=f"--decimal {mark}")
    size = 1000 if mark == "comma" else 1
    values = [(1.234 + i / 1000) * size if i % 4 == 0 else 100 + i for i in range(72)]
    truth.values["value"] = pd.DataFrame({"n": values}, HOURS)
    rows = [f"{t};{1.234 + i / 1000:.3f}" if i % 4 == 0 else f"{t};{100 + i}"
            for i, t in enumerate(HOURS)]  # fmt: skip
    return save(folder, "\n".join(["time;n", *rows]) + "\n"), truth


@case()
def german_road_counts(folder):
    """Dates of six digits, hours up to 24, ids that begin with 0."""
    truth = Truth({"KFZ_R1": 0, "KFZ_R2": 0}, ["0923", "4001"], HOURS + pd.Timedelta("1h"))
    head = ["Zst", "Land", "Wotag", "Datum", "Stunde", *truth.values]

    def row(t, c):
        day = t - pd.Timedelta("1h")
        return [c, "NW", str(day.weekday()), f"{day:%y%m%d}", f"{day.hour + 1:02}"]

    text = lines(truth, head, row, ";")
    return save(folder, text, "counts.txt"), truth


@case((96, 0, False), (48, 1, False), (96, 0, True))
def steps_of_a_day_across(folder, n, first, totals):
    """SCATS: a row for each site, detector and day, and a numbered column for each step.

    Beside them may stand the sum of the day, and numbers of records and alarms.
    """
    step = pd.Timedelta("1D") / n
    times = pd.date_range("2024-05-10", periods=3 * n, freq=step) + first * step
    truth = Truth({"value": 0}, ["100/1", "100/2", "4043/1", "4043/2"], times)
    steps = [f"V{i + first:02}" for i in range(n)]
    last = ["REGION", *(["CT_RECORDS", "QT_VOLUME_24HOUR", "CT_ALARM_24HOUR"] if totals else [])]
    rows = [",".join(["NB_SCATS_SITE", "QT_INTERVAL_COUNT", "NB_DETECTOR", *steps, *last])]
    for day in range(3):
        for cell, column in truth.wide.items():
            site, detector = cell.split("/")
            own = column.iloc[n * day : n * day + n]
            beside = ["CB1", *([str(96 - day), number(own.sum()), str(day % 2)] if totals else [])]
            fields = [site, f"2024-05-{10 + day} 00:00:00", detector, *map(number, own), *beside]
            rows.append(",".join(fields))
    return save(folder, "\n".join(rows) + "\n"), truth


@case()
def lanes(folder):
    """Three columns name a cell; the clock has twelve hours."""
    cells = [f"{s}/{d}/{lane}" for s in ("012", "155") for d in ("NB", "SB") for lane in (1, 2)]
    truth = Truth({"Volume": 0}, cells)
    text = lines(truth, ["Station ID", "Direction", "Lane", "Date", "Time", "Volume"],
                 lambda t, c: [*c.split("/"), f"{t:%m/%d/%Y}", f"{t:%I:%M %p}"])  # fmt: skip
    return save(folder, text), truth


@case(("PULocationID",), ("id",), ("place",))
def numbers_of_zones(folder, name):
    """The ids are whole numbers, which tell apart the rows of each time."""
    truth = Truth({"trips": 0, "fare": 2}, ["004", "012", "132"])
    text = lines(truth, ["pickup_hour", name, *truth.values], lambda t, c: [str(t), c])
    return save(folder, text), truth


@case((True,), (False,))
def files_in_other_units(folder, in_names):
    """A day in GB, and the next ones all in MB: after the numbers, or in the columns' names."""
    truth = Truth({"DL volume": 0}, ["A", "B"])
    (folder / "days").mkdir()
    for day, rows in truth.long.groupby(truth.long["time"].dt.date):
        unit, digits = ("GB", 3) if day.day == 10 else ("MB", 0)
        name, after = (f"DL volume ({unit})", "") if in_names else ("DL volume", f" {unit}")
        own = [f"{t},{c},{v / 10**digits:.{digits}f}{after}" for t, c, v in
               rows.itertuples(index=False)]  # fmt: skip
        save(folder / "days", "\n".join([f"time,cell,{name}", *own, ""]), f"{day}.csv")
    truth.values["DL volume"] *= 1e6
    return folder / "days", truth


@case()
def turning_counts(folder):
    """A workbook with a date among its titles, legs above movements, and errors of formulas."""
    moves = [f"{leg} {move}" for leg in ("North", "East") for move in ("Right", "Thru", "Left")]
    truth = Truth({"value": 0}, moves, obey="--layout wide")
    truth.wide.iloc[7, 2] = np.nan
    book = openpyxl.Workbook()
    sheet = book.active
    for row in (["Main St at 1st Ave"], ["Tue Mar 5, 2024"], [], ["Leg", *moves], ["Start Time"]):
        sheet.append([cell.partition(" ")[0] if cell in moves else cell for cell in row])
    for i, move in enumerate(moves):
        sheet.cell(5, 2 + i, move.partition(" ")[2])
    for i in (0, 3):
        sheet.merge_cells(start_row=4, start_column=2 + i, end_row=4, end_column=4 + i)
    for t, values in zip(HOURS, truth.wide.to_numpy(), strict=True):
        sheet.append([t.to_pydatetime(), *("#DIV/0!" if np.isnan(v) else v for v in values)])
    sheet.append(["Ø", *truth.wide.mean()])
    book.save(folder / "turns.xlsx")
    return folder / "turns.xlsx", truth


@case()
def hours_up_to_24(folder):
    """The last hour of a day is 24:00 of the same date."""
    truth = Truth({"value": 0}, ["n"], HOURS + pd.Timedelta("1h"))
    rows = []
    for t, v in truth.wide["n"].items():
        shown = f"{t:%d.%m.%Y %H:%M}"
        if t.hour == 0:
            shown = f"{t - pd.Timedelta('1D'):%d.%m.%Y} 24:00"
        rows.append(f"{shown};{number(v)}")
    return save(folder, "\n".join(["Zeitpunkt;n", *rows]) + "\n"), truth


@case(("dayfirst",), ("monthfirst",))
def dates_that_need_an_answer(folder, order):
    """Day and month cannot be told apart: the message has both options."""
    times = pd.date_range("2024-05-06", periods=24, freq="h")
    truth = Truth({"value": 0}, ["n"], times, obey=f"--time-format {order}")
    form = "%d/%m/%Y %H:%M" if order == "dayfirst" else "%m/%d/%Y %H:%M"
    rows = [f"{t.strftime(form)},{number(v)}" for t, v in truth.wide["n"].items()]
    return save(folder, "\n".join(["time,n", *rows]) + "\n"), truth


@case(("%Y-%m-%d %H:%M CET",), ("%a %b %d %H:%M:%S CET %Y",))
def names_of_zones_need_an_answer(folder, form):
    """CET may be an offset or the clock of a place, which changes in summer."""
    obey = f"--time-format '{form}' --time-zone Europe/Berlin --clock local"
    truth = Truth({"value": 0}, ["n"], obey=obey)
    truth.times = HOURS - pd.Timedelta("2h")
    rows = [f"{t.strftime(form)},{number(v)}" for t, v in truth.wide["n"].items()]
    return save(folder, "\n".join(["time,n", *rows]) + "\n"), truth


@case(("comma",), ("point",))
def numbers_that_need_an_answer(folder, mark):
    """A comma before three digits: the message has both options."""
    truth = Truth({"value": 3}, ["n"], obey=f"--decimal {mark}")
    style = 1.0 if mark == "comma" else 1000.0
    truth.values["value"] = pd.DataFrame({"n": (np.arange(72) + 1234) / 1000 * style}, HOURS)
    rows = [f"{t};{1},{234 + i:03}" for i, t in enumerate(HOURS)]
    return save(folder, "\n".join(["time;n", *rows]) + "\n"), truth


@case((12,), (40,), (300,))
def road_wide(folder, n):
    """Many detectors beside one column of times."""
    truth = Truth({"value": 0}, [f"Street {chr(65 + i % 26)}{'abc'[i // 26 % 3]}x{i // 78}"
                                 for i in range(n)])  # fmt: skip
    return save(folder, truth.wide.rename_axis("Date/Time").to_csv()), truth


@case(("wide",), ("services",))
def few_columns_need_an_answer(folder, layout):
    """Three columns may be places or quantities: the message has both options."""
    names = ["north", "south", "west"]
    truth = Truth({"value": 0}, names, obey=f"--layout {layout}")
    path = save(folder, truth.wide.rename_axis("time").to_csv(), "spot.csv")
    if layout == "services":
        truth.values = {n: truth.wide[[n]].set_axis(["spot"], axis="columns") for n in names}
        truth.cells = ["spot"]
    return path, truth


@case()
def road_services_of_one_detector(folder):
    """Flow, speed and occupancy of a loop, with a row of units."""
    truth = Truth({"Flow": 0, "Speed": 1, "Occupancy": 2}, ["loop7"])
    text = lines(truth, ["Timestamp", *truth.values], lambda t, c: [str(t)])
    first, rest = text.split("\n", 1)
    return save(folder, f"{first}\n,veh/h,km/h,%\n{rest}", "loop7.csv"), truth


@case(("long",), ("offset",), ("zulu",))
def road_long(folder, kind):
    """Sensors below each other, with places, offsets and blank lines."""
    truth = Truth({"speed": 1}, ["401", "402"])
    mark = {"long": "", "offset": "+00:00", "zulu": "Z"}[kind]
    text = lines(truth, ["timestamp", "lat", "lon", "sensor_id", "speed"],
                 lambda t, c: [f"{t:%Y-%m-%dT%H:%M:%S}{mark}", "52.5", "13.4", c])  # fmt: skip
    return save(folder, text.replace("\n", "\n\n", 3)), truth


@case(("cells-above", True), ("services-above", True), ("cells-above", False))
def two_rows_of_names(folder, above, clear):
    """Groups above names: cells above services, or services above cells."""
    services = LTE if clear else {"one": 0, "two": 0}
    truth = Truth(services, ["Alpha", "Beta"], obey=None if clear else f"--layout {above}")
    pairs = [(c, s) for c in truth.cells for s in services]
    if above == "services-above":
        pairs = sorted([(s, c) for c, s in pairs])
    upper = [up if i % 2 == 0 else "" for i, (up, _) in enumerate(pairs)]
    rows = [[*map(str, ["Time", *upper])], ["", *(low for _, low in pairs)]]
    for t in HOURS:
        values = [truth.values[s if above == "cells-above" else c].loc[t,
                  c if above == "cells-above" else s] for c, s in pairs]  # fmt: skip
        rows.append([str(t), *map(number, values)])
    return save(folder, "\n".join(map(",".join, rows)) + "\n"), truth


@case(("csv",), ("zip",), ("overlap",), ("pattern",))
def daily_files(folder, kind):
    """A file a day, in a folder, a zip or by a pattern; the first hour of the next day again."""
    truth = Truth({"Trips": 0}, ["1", "2"])
    texts = {}
    for day, rows in truth.long.groupby(truth.long["time"].dt.date):
        end = pd.Timestamp(day) + pd.Timedelta("1D")
        if kind == "overlap":
            rows = pd.concat([rows, truth.long[truth.long["time"] == end]])
        texts[f"trips_{day:%Y%m%d}.csv"] = rows.to_csv(index=False)
    if kind == "zip":
        with zipfile.ZipFile(folder / "days.zip", "w") as packed:
            for name, text in texts.items():
                packed.writestr(f"export/{name}", text)
        return folder / "days.zip", truth
    days = folder / "days"
    days.mkdir()
    for name, text in texts.items():
        save(days, text, name)
    return days / "trips_*.csv" if kind == "pattern" else days, truth


@case(("cells",), ("services",))
def a_file_each(folder, what):
    """A file for each cell, or for each service of many cells."""
    truth = Truth(LTE if what == "cells" else {"entries": 0, "exits": 0},
                  ["North", "South", "West"])  # fmt: skip
    (folder / "all").mkdir()
    for name in truth.cells if what == "cells" else truth.values:
        frame = truth.values.get(name)
        if frame is None:
            frame = pd.DataFrame({s: f[name] for s, f in truth.values.items()})
        save(folder / "all", frame.rename_axis("time").to_csv(), f"{name}.csv")
    return folder / "all", truth


def book(folder, sheets, merge=(), name="book.xlsx"):
    openpyxl = pytest.importorskip("openpyxl")
    made = openpyxl.Workbook()
    made.remove(made.active)
    for title, rows in sheets.items():
        sheet = made.create_sheet(title)
        for row in rows:
            sheet.append(row)
        for area in merge:
            sheet.merge_cells(area)
    made.save(folder / name)
    return folder / name


@case()
def excel_with_titles_and_totals(folder):
    truth = Truth(LTE, ["A1", "A2"])
    rows = [["Weekly report"], [None], ["Time", "Cell", *LTE]]
    rows += [[t.to_pydatetime(), c, *map(float, v)] for t, c, *v in truth.long.values.tolist()]
    return book(folder, {"Report": [*rows, ["Total", None, 1.0, 2.0]]}), truth


@case()
def excel_with_merged_dates_and_hours(folder):
    truth = Truth({"Traffic (GB)": 1}, ["A1"])
    rows = [["Date", "Hour", "Cell", "Traffic (GB)"]]
    merge = []
    for t, v in truth.wide["A1"].items():
        rows.append([t.to_pydatetime() if t.hour == 0 else None, t.hour, "A1", v])
        if t.hour == 0:
            merge.append(f"A{len(rows)}:A{len(rows) + 23}")
    return book(folder, {"Data": rows}, merge), truth


@case()
def excel_with_two_rows_of_merged_names(folder):
    truth = Truth(LTE, ["Alpha", "Beta"])
    rows = [["Time", "Alpha", None, "Beta", None], [None, *LTE, *LTE]]
    for t in HOURS:
        rows.append([t.to_pydatetime(), *(float(truth.values[s].loc[t, c]) for c in truth.cells
                                          for s in LTE)])  # fmt: skip
    return book(folder, {"Data": rows}, ["A1:A2", "B1:C1", "D1:E1"]), truth


@case(("services",), ("regions",))
def excel_workbooks_of_days(folder, kind):
    """A workbook a day, whose sheets are services of the same cells, or cells of a region."""
    cells = [f"{region}{i}" for region in "NS" for i in range(7)]
    truth = Truth({"DL": 0, "UL": 0} if kind == "services" else {"value": 0}, cells)
    if kind == "services":
        sheets = truth.values
    else:
        sheets = {region: truth.wide.filter(like=region) for region in "NS"}
    (folder / "days").mkdir()
    for i in range(0, 72, 24):
        rows = {
            name: [["time", *f.columns],
                   *([t.to_pydatetime(), *r] for t, *r in f[i:i + 24].itertuples())]
            for name, f in sheets.items()
        }  # fmt: skip
        book(folder / "days", rows, name=f"day_{i}.xlsx")
    return folder / "days", truth


@case()
def excel_sheets_of_services(folder):
    truth = Truth({"inbound": 0, "outbound": 0}, ["Central", "Harbour"])
    sheets = {
        name: [["time", *truth.cells], *([t.to_pydatetime(), *map(float, r)]
                                         for t, r in zip(HOURS, f.values, strict=True))]
        for name, f in truth.values.items()
    }  # fmt: skip
    return book(folder, {"About": [["Made in May"]], **sheets}), truth


@case()
def excel_times_of_day(folder):
    truth = Truth({"Entries": 0}, ["Main"])
    rows = [["Date", "Time", "Station", "Entries"]]
    rows += [[t.date(), t.time(), "Main", float(v)] for t, v in truth.wide["Main"].items()]
    return book(folder, {"Data": rows}), truth


@case()
def german_values_of_three_decimals(folder):
    """Dates with points tell that 19,198 has a decimal comma and 2.290 a separator of thousands."""
    truth = Truth({"Volumen (GB)": 0, "Nutzer": 0}, ["M1", "M2"])
    truth.values["Volumen (GB)"] /= 1000
    text = "Datum;Uhrzeit;Zelle;Volumen (GB);Nutzer\n"
    for t, c, volume, users in truth.long.itertuples(index=False):
        text += f"{t:%d.%m.%Y;%H:%M};{c};{volume:.3f}".replace(".", "#").replace("#", ".", 2)
        text = text.replace("#", ",") + f";{users:,.0f}\n".replace(",", ".")
    return save(folder, text, encoding="cp1252"), truth


@case()
def huawei_zip_with_a_row_of_units(folder):
    """A file a day with units below the names, quoted objects and thousands."""
    truth = Truth({"L.Thrp.bits.DL(bit)": 0, "Users": 0}, ["eNB0, Cell=0", "eNB0, Cell=1"])
    truth.values["L.Thrp.bits.DL(bit)"] *= 1000
    head = "Result Time,Granularity Period,Object Name,L.Thrp.bits.DL(bit),Users,Reliability"
    with zipfile.ZipFile(folder / "pm.zip", "w") as packed:
        for day, rows in truth.long.groupby(truth.long["time"].dt.date):
            text = f"{head}\n,Minutes,,bit,,\n"
            for t, c, bits, users in rows.itertuples(index=False):
                text += f'{t:%m/%d/%Y %I:%M:%S %p},60,"{c}","{bits:,.0f}",{users:.0f},100%\n'
            packed.writestr(f"pm/pmresult_{day:%Y%m%d}.csv", text)
    return folder / "pm.zip", truth


@case(("%Y-%m-%d %H:%M",), ("%d.%m.%Y %H:%M",))
def times_across(folder, form):
    """A pivot table: a row for each cell and a column for each time."""
    truth = Truth({"value": 1}, ["A1", "A2"])
    frame = truth.wide.T.set_axis(HOURS.strftime(form), axis="columns").rename_axis("Cell")
    return save(folder, frame.to_csv(sep=";")), truth


@case()
def monitor_with_units_and_spans(folder):
    """Times of both ends, units after the numbers, sums and means at the end."""
    truth = Truth({"Traffic In (Volume)": 0, "Traffic In (Speed)": 2}, ["prtg"])
    end = "%I:%M:%S %p"
    text = '"Date Time","Traffic In (Volume)","Traffic In (Speed)"\n'
    for t, _, volume, speed in truth.long.itertuples(index=False):
        span = f"{t:%m/%d/%Y {end}} - {t + pd.Timedelta('1h'):{end}}"
        text += f'"{span}","{volume:,.0f} KByte","{speed:,.2f} kbit/s"\n'
    text += '"Sums (of 72 values)","47,000 KByte",\n"Averages (of 72 values)","1 KByte",\n'
    return save(folder, text, "prtg.csv"), truth


@case()
def melbourne_portal(folder):
    """Names of months first, the calendar in columns, ids beside names."""
    truth = Truth({"Hourly_Counts": 0}, ["Bourke Street", "Town Hall"])
    head = "ID,Date_Time,Year,Month,Mdate,Day,Time,Sensor_ID,Sensor_Name,Hourly_Counts"
    rows = [
        f'{i},"{t:%B %d, %Y %I:%M:%S %p}",{t.year},{t:%B},{t.day},{t:%A},{t.hour},'
        f"{truth.cells.index(c)},{c},{number(v)}"
        for i, (t, c, v) in enumerate(truth.long.itertuples(index=False))
    ]
    return save(folder, "\n".join([head, *rows, ""])), truth


@case((";",), (",",))
def metro_stations(folder, sep):
    """Passengers entering stations each quarter of an hour, with a total column."""
    times = pd.date_range("2024-05-13 05:00", periods=80, freq="15min")
    names = ["Main", "Opera", "Zoo", "Port", "Mill", "Gate 7", "Fair", "Park", "Dome"]
    truth = Truth({"value": 0}, names, times)
    frame = truth.wide.assign(Total=truth.wide.sum(axis=1)).rename_axis("Interval")
    return save(folder, frame.to_csv(sep=sep)), truth


@case()
def metro_long_with_a_total_of_all(folder):
    truth = Truth({"Passengers": 0}, ["Main", "Opera", "Zoo"])
    whole = truth.long.groupby("time", as_index=False)["Passengers"].sum().assign(cell="Total")
    frame = pd.concat([truth.long, whole]).rename(columns={"cell": "Station"}).sort_values("time")
    return save(folder, frame.to_csv(index=False)), truth


@case((True,), (False,))
def metro_with_intervals(folder, dash):
    """Spans such as 05:00 - 05:15 in a column beside the date."""
    times = pd.date_range("2024-05-13", periods=96 * 3, freq="15min")
    truth = Truth({"Boardings": 0}, ["Main", "Zoo"], times)
    quarter = pd.Timedelta("15min")

    def row(t, c):
        end = f" - {t + quarter:%H:%M}" if dash else ""
        return [f"{t:%Y-%m-%d}", f"{t:%H:%M}{end}", c]

    text = lines(truth, ["Day", "From", "Station", "Boardings"], row)
    return save(folder, text), truth


@case()
def pedestrians(folder):
    """Melbourne's portal: a wide table of dates and hours, blanks where a counter was off."""
    names = ["Queen", "King", "Lygon", "Swan", "Flinders", "Elm", "Main", "Oak"]
    truth = Truth({"value": 0}, [f"{name} Street" for name in names])
    truth.wide.iloc[5:9, 1] = np.nan
    frame = truth.wide.copy()
    frame.insert(0, "Hour", frame.index.hour)
    frame.insert(0, "Date", frame.index.strftime("%Y-%m-%d"))
    return save(folder, frame.to_csv(index=False)), truth


@case(("NIL",), ("-",), ("n/a",), ("#N/A",))
def missing_marks(folder, mark):
    truth = Truth({"Hourly_Counts": 0}, ["s1", "s2"])
    truth.values["Hourly_Counts"].iloc[3, 0] = np.nan
    frame = truth.long.rename(columns={"cell": "Sensor_Name", "time": "Date_Time"})
    frame = frame.sort_values(["Date_Time", "Sensor_Name"])
    text = frame.to_csv(index=False, na_rep=mark)
    if "s1,NIL" not in text and mark not in text:
        first = f"{HOURS[3]},s1,{mark}\n"
        text += first
    return save(folder, text), truth


@case()
def trailing_separators_and_a_mark_of_excel(folder):
    truth = Truth(LTE, ["A", "B"])
    text = lines(truth, ["time", "cell", *LTE, ""], lambda t, c: [str(t), c], ";", ",")
    return save(folder, "sep=;\n" + re.sub(r"(\d)\n", r"\1;\n", text)), truth


@case(("%",), (" %",))
def percent_signs(folder, sign):
    truth = Truth({"Utilization": 1}, ["A", "B"])
    text = lines(truth, ["time", "cell", "Utilization"], lambda t, c: [str(t), c])
    return save(folder, re.sub(r"(\d)\n", rf"\1{sign}\n", text)), truth


@case()
def two_columns_named_by_the_user(folder):
    """A date column and two clocks leave a question that names both."""
    truth = Truth({"Calls": 0}, ["A"], obey="--time opened")
    text = lines(truth, ["opened", "stored", "cell", "Calls"], lambda t, c: [
        str(t), str(HOURS[-1] + (HOURS[-1] - t) / 2), c])  # fmt: skip
    return save(folder, text), truth


@case((0,), (1,), (2,))
def units_that_change(folder, i):
    """Numbers with units after them, a column of units, or files in different units."""
    truth = Truth({"Traffic": 0}, ["A", "B"])

    def row(t, c, v):
        unit, size = ("MB", 1e6) if (v > 5000 if i < 2 else t.day % 2) else ("kB", 1e3)
        number_of = f"{v * 1e6 / size:,.3f}"
        return f'{t},{c},"{number_of}' + (f' {unit}"' if i != 1 else f'",{unit}')

    rows = [row(*one) for one in truth.long.itertuples(index=False)]
    truth.values["Traffic"] *= 1e6
    head = "time,cell,Traffic" + ",Unit" * (i == 1)
    if i < 2:
        return save(folder, "\n".join([head, *rows, ""])), truth
    (folder / "all").mkdir()
    for day in {t.day for t in HOURS}:
        own = [r for r in rows if r.startswith(f"2024-05-{day}")]
        save(folder / "all", "\n".join([head, *own, ""]), f"{day}.csv")
    return folder / "all", truth


@case()
def quantities_below_each_other(folder):
    """Each row names its quantity and its unit."""
    truth = Truth({"DL Traffic": 0, "PRB Usage": 1}, ["A", "B"])
    rows = [
        f"{t},{c},{name},{number(v)},{'MB' if name == 'DL Traffic' else '%'}"
        for name, frame in truth.values.items()
        for (t, c), v in frame.stack().items()
    ]
    return save(folder, "\n".join(["Timestamp,Cell,KPI Name,Value,Unit", *rows, ""])), truth


@case(("{:02}:00",), ("H{}",))
def hours_across(folder, form):
    """A row for each station and day, and a column for each hour."""
    first = 0 if form == "{:02}:00" else 1
    times = pd.date_range("2024-05-10", periods=72, freq="h") + pd.Timedelta(hours=first)
    truth = Truth({"value": 0}, ["Main", "Zoo"], times)
    text = "\t".join(["Station", "Date", *(form.format(h + first) for h in range(24))]) + "\n"
    for cell, column in truth.wide.items():
        for day in range(3):
            own = column.iloc[24 * day : 24 * day + 24]
            fields = [cell, f"{HOURS[24 * day]:%d/%m/%Y}", *map(number, own)]
            text += "\t".join(fields) + "\n"
    return save(folder, text, "export.tsv"), truth


@case(("time",), ("Time",), ("hour",))
def days_across(folder, name):
    """A row for each hour of the day and a column for each day."""
    truth = Truth({"value": 0}, ["value"])
    table = truth.wide.to_numpy().reshape(3, 24).T
    frame = pd.DataFrame(table, [f"{h:02}:00" for h in range(24)], HOURS[::24].strftime("%Y-%m-%d"))
    return save(folder, frame.rename_axis(name).to_csv()), truth


@case()
def cells_named_by_dates(folder):
    truth = Truth({"value": 0}, ["2024-01-01", "2024-01-02", "2024-01-03"])
    return save(folder, truth.wide.rename_axis("time").to_csv()), truth


@case(("{h}:00-{h}:59",), ("{t:%I} {t:%p}",))
def weekdays_and_spans(folder, clock):
    """A date with its weekday, and an hour with its end or with AM and PM."""
    names = [f"Pier {c}, north" for c in "abcdefgh"]
    truth = Truth({"value": 0}, names)
    frame = truth.wide.assign(Total=truth.wide.sum(axis=1))
    frame.insert(0, "Time", [clock.format(h=t.hour, t=t) for t in HOURS])
    frame.insert(0, "Date", HOURS.strftime("%A %d %B %Y"))
    return save(folder, frame.to_csv(index=False)), truth


@case()
def zip_with_a_readme(folder):
    """What a Mac packs beside the tables, and a text about them."""
    path, truth = daily_files(folder, "zip")
    with zipfile.ZipFile(path, "a") as packed:
        packed.writestr("export/README.txt", "Trips, as counted\nby gates, doors, and ramps.\n")
        packed.writestr("__MACOSX/export/._trips_20240510.csv", b"\0\5\26\7")
    return path, truth


@case()
def road_with_columns_that_never_change(folder):
    """PeMS: district, freeway and lanes beside what a station measures."""
    truth = Truth({"Total Flow": 0, "Avg Speed": 1}, ["717000", "717007"])
    text = lines(truth, ["Timestamp", "Station", "District", "Lane Type", "Samples", *truth.values],
                 lambda t, c: [f"{t:%m/%d/%Y %H:%M:%S}", c, "7", "ML", "50"])  # fmt: skip
    return save(folder, text), truth


@case(("%Y%m%d%H%M+0200",), ("%Y%m%d.%H%M%S+02:00",))
def ericsson_periods(folder, form):
    """Begin and end of each period with an offset, beside the day, and the path of an object."""
    paths = [f"SubNetwork=ROOT,MeContext=ENB1,EUtranCellFDD=C{i}" for i in range(2)]
    truth = Truth({"pmPdcpVolDlDrb": 0, "pmRrcConnLevSum": 0}, paths)
    truth.times = HOURS - pd.Timedelta("2h")
    head = ["DATE_ID", "ROP_START", "ROP_END", "MOID", *truth.values]

    def row(t, c):
        end = t + pd.Timedelta("1h")
        return [f"{t:%Y-%m-%d}", t.strftime(form), end.strftime(form), c]

    return save(folder, lines(truth, head, row)), truth


@case()
def huawei_without_some_units(folder):
    """A row of units below the names, of which some are None."""
    truth = Truth({"L.Thrp.bits.DL(bit)": 0, "L.Traffic.User.Avg(None)": 2}, ["A", "B"])
    head = ["Result Time", "Granularity Period", "Object Name", *truth.values]
    text = lines(truth, head, lambda t, c: [f"{t:%Y-%m-%d %H:%M}", "60", c])
    return save(folder, text.replace("\n", "\n,Minutes,,bit,None\n", 1)), truth


@case()
def english_motorways(folder):
    """Counts by classes of length and speed, of which some are empty, and a number of each step."""
    truth = Truth({"0 - 520 cm": 0, "1160+ cm": 0, "80+ mph": 0}, ["M25/5790A", "A1(M)/9842J"])
    head = ["Site Name", "Report Date", "Time Period Ending",
            "Time Interval", *truth.values]  # fmt: skip
    text = lines(truth, head, lambda t, c: [
        c, f"{t:%d/%m/%Y} 00:00:00", f"{t:%H:%M:%S}", str(t.hour)])  # fmt: skip
    return save(folder, text), truth


@case()
def turnstiles(folder):
    """Units whose numbers look like dates, month first, zeros before numbers, spaces behind."""
    truth = Truth({"ENTRIES": 0, "EXITS": 0}, ["59 ST/02-00-00", "59 ST/02-00-01", "5 AV/02-00-00"])
    head = "C/A,STATION,SCP,DIVISION,DATE,TIME,ENTRIES,EXITS  "
    rows = [
        f"A,{c.replace('/', ',')},BMT,{t:%m/%d/%Y},{t:%H:%M:%S},{n:010.0f},{m:010.0f}  "
        for t, c, n, m in truth.long.itertuples(index=False)
    ]
    return save(folder, "\n".join([head, *rows, ""])), truth


@case(("|", "call_type", "MOC"), (",", "ended_at", "2024-05-14 10:00:00"))
def events_without_numbers(folder, sep, other, text):
    """Calls or trips, each with a time, a place and an id, which the message says how to count."""
    truth = Truth({"count": 0}, ["KI001A", "KI001B"], obey="--resample 1h --agg count")
    rng = np.random.default_rng(3)
    truth.values["count"][:] = rng.integers(0, 4, truth.wide.shape)
    truth.values["count"].iloc[[0, -1]] = 2.0
    rows = [
        (time + pd.Timedelta(seconds=int(rng.integers(3600))), cell)
        for (time, cell), n in truth.wide.stack().items()
        for _ in range(int(n))
    ]
    head = sep.join(["started_at", "cell_id", other, "imsi_hash"])
    text = [sep.join([str(t), c, text, rng.bytes(4).hex()]) for t, c in sorted(rows)]
    return save(folder, "\n".join([head, *text]) + "\n"), truth


@case((True,), (False,))
def parts_of_times(folder, ericsson):
    """Date, hour and minute in numbers; or a year, a named month and a day, totals and a note."""
    if ericsson:
        truth = Truth(LTE, ["E1", "E2"], pd.date_range("2024-05-10", periods=96, freq="15min"))
        head = ["DATE_ID", "HOUR_ID", "MIN_ID", "ERBS", "EUtranCellFDD", *truth.values]
        text = lines(truth, head, lambda t, c: [
            f"{t:%Y-%m-%d}", str(t.hour), str(t.minute), "E", c])  # fmt: skip
        return save(folder, text), truth
    truth = Truth({"Sum of Traffic GB": 1}, ["Lyon", "Nice"], HOURS + pd.Timedelta("480h"))
    head = ["Year", "Month", "Day", "Hour", "Site", *truth.values]
    text = lines(truth, head, lambda t, c: [
        str(t.year), f"{t:%B}", str(t.day), str(t.hour), c])  # fmt: skip
    note = '"Applied filters:\nSite is not blank"\n'
    return save(folder, f"{text}2024,June,Total,,,71.5\nTotal,,,,,99.5\n\n{note}"), truth


@case()
def rates_of_a_monitor(folder):
    """Grafana writes each number in the unit that suits it; a small b is a bit."""
    names = [f'{{instance="r{i}:9100"}}' for i in range(4)]
    truth = Truth({"value": 0}, names, obey="--layout wide")
    truth.values["value"] *= np.array([1e4, 1e3, 1e2, 1e6])
    rows = [
        ",".join([str(t), *(f"{v / 1e6} Mb/s" if v > 1e6 else f"{v / 1e3} kb/s" for v in own)])
        for t, own in zip(HOURS, truth.wide.to_numpy(), strict=True)
    ]
    head = ",".join(["Time", *('"' + n.replace('"', '""') + '"' for n in names)])
    return save(folder, "\n".join([head, *rows, ""])), truth


@case()
def a_day_that_ends_after_midnight(folder):
    """A metro's day begins at five; its last columns are of the next date."""
    times = pd.date_range("2024-05-10 05:00", periods=3 * 96, freq="15min")
    truth = Truth({"value": 0}, ["Acton Town", "Aldgate"], times)
    spans = [f"{t:%H%M}-{t + pd.Timedelta('15min'):%H%M}" for t in times[:96]]
    rows = [",".join(["nlc", "Station", "Date", *spans])]
    for cell, column in truth.wide.items():
        for day in range(3):
            own = map(number, column.iloc[96 * day : 96 * day + 96])
            rows.append(",".join([str(len(cell)), cell, f"{10 + day}/05/2024", *own]))
    return save(folder, "\n".join([*rows, ""])), truth


@case()
def night_buses(folder):
    """Hours count on after midnight, to 28, and the routes' names look like numbers with a unit."""
    truth = Truth({"boardings": 0}, ["101X", "102X"], HOURS + pd.Timedelta("5h"))
    day = pd.Timedelta("5h")
    text = lines(truth, ["service_date", "departure", "route", "boardings"], lambda t, c: [
        f"{t - day:%Y%m%d}", f"{(t - day).hour + 5:02}:00:00", c])  # fmt: skip
    return save(folder, text), truth


@case(("count",), ("total",))
def trips_by_areas(folder, agg):
    """Chicago: an id for each trip, its begin and end, areas as floats, of which some are empty."""
    truth = Truth({"count": 0}, [8, 32], obey=f"--resample 1h --agg {agg}")
    rng = np.random.default_rng(5)
    rows, trips = [], {name: truth.wide.copy() * 0 for name in ("count", "Fare")}
    for i in range(900):
        hour, area = HOURS[i * 72 // 900], (8, 32, "")[i * 7 % 3]
        start, fare = hour + pd.Timedelta(minutes=15 * int(rng.integers(4))), i % 50 + 0.25
        end = start + pd.Timedelta(minutes=int(rng.integers(1, 90)))
        if area:
            trips["count"].loc[hour, area] += 1
            trips["Fare"].loc[hour, area] += fare
        form = "%m/%d/%Y %I:%M:%S %p"
        other = f"{rng.integers(1, 77)},{fare}"
        rows.append(f"{i:040x},{i % 40:0128x},{start:{form}},{end:{form}},,{area},{other}")
    head = "Trip ID,Taxi ID,Trip Start Timestamp,Trip End Timestamp,Pickup Census Tract,"
    head += "Pickup Community Area,Dropoff Community Area,Fare"
    truth.values = {name: trips[name] for name in (["count"] if agg == "count" else ["Fare"])}
    return save(folder, "\n".join([head, *rows, ""])), truth


@case(("duration_s",), ("end_time",))
def sessions(folder, last):
    """Records of sessions, with volumes: a step without one has no volume."""
    services = {"bytes_dl": 0} | ({"duration_s": 0} if last == "duration_s" else {})
    truth = Truth(services, ["208-1", "208-2"], obey="--resample 1h --agg total")
    rng = np.random.default_rng(6)
    rows = []
    for hour in HOURS:
        for cell in truth.cells:
            volumes = rng.integers(1, 9**6, rng.integers(0 if 0 < hour.hour < 23 else 1, 9))
            for name, values in zip(services, (volumes, volumes % 900), strict=False):
                truth.values[name].loc[hour, cell] = values.sum()
            for volume in volumes.tolist():
                start, length = hour + pd.Timedelta(seconds=int(rng.integers(3600))), volume % 900
                end = length if last == "duration_s" else start + pd.Timedelta(seconds=length)
                rows.append(f"{volume:05}xxxx,{start},{end},{cell},{volume}")
    return save(folder, "\n".join([f"imsi,start_time,{last},cell_id,bytes_dl", *rows, ""])), truth


@case((".csv", 6), (".csv", 4), (".xlsx", 12))
def numbers_of_excel(folder, ending, digits):
    """Days since 1899-12-30, as in cells of a workbook that have no format of dates."""
    truth = Truth(LTE, ["N1", "N2"])
    days = (HOURS - pd.Timestamp("1899-12-30")) / pd.Timedelta("1D")
    days = dict(zip(HOURS, days.to_numpy().round(digits), strict=True))
    head = ["Zeit", "Zelle", *LTE]
    if ending == ".xlsx":
        long = truth.long.assign(time=truth.long["time"].map(days))
        return book(folder, {"Tabelle1": [head, *long.to_numpy().tolist()]}), truth
    text = lines(truth, head, lambda t, c: [number(days[t], ","), c], ";", ",")
    return save(folder, f"{text}Summe;;99,5;7\n"), truth


@case()
def pivot_table(folder):
    """Each date once, totals of days, of all and of each row."""
    truth = Truth({"value": 0}, ["Alpha", "Beta", "Gamma"])
    rows = [["Sum of Volume", None, "Site"], ["Date", "Hour", *truth.cells, "Grand Total"]]
    for i, (t, values) in enumerate(zip(HOURS, truth.wide.to_numpy().tolist(), strict=True)):
        date = None if t.hour else t.to_pydatetime()
        rows.append([date, t.hour, *values, sum(values)])
        if t.hour == 23:
            rows.append([f"{t:%Y-%m-%d} Total", None, *truth.wide[i - 23 : i + 1].sum(), 7])
    return book(folder, {"Pivot": [*rows, ["Grand Total", None, 1, 2, 3, 6]]}), truth


@case(["cell", "time"], ["time", "cell"], ["date", "cell", "hour"], ["cell", "date", "hour"])
def labels_above_their_rows(folder, *order):
    """The outline of a pivot table: each label once, above rows of those to its right."""
    truth = Truth({"value": 0}, ["Alpha", "Beta", "Gamma"])
    times = truth.long["time"].dt
    parts = {"date": times.strftime("%Y-%m-%d"), "hour": times.strftime("%H:00")}
    frame = truth.long.assign(**parts)
    frame = frame.sort_values([*order])[[*order, "value"]]
    again = [frame[[*order[:i]]].duplicated() for i in range(1, len(order))]
    for label, repeated in zip(order, again, strict=False):
        frame.loc[repeated, label] = None
    return save(folder, frame.to_csv(index=False)), truth


@case()
def pivot_table_without_years(folder):
    """Merged months and days do not tell the year, which the message asks for."""
    times = pd.date_range("2024-01-01", periods=72, freq="h")
    truth = Truth({"value": 0}, ["A", "B"], times, obey="--start 2024-01-01T00:00 --step 1h")
    rows = [
        ["Sum of Volume", None, None, "Site"],
        ["Month", "Day", "Hour", "A", "B", "Grand Total"],
    ]
    for t, values in zip(times, truth.wide.to_numpy().tolist(), strict=True):
        rows.append([f"{t:%b}", t.day, t.hour, *values, sum(values)])
    rows.append(["Jan Total", None, None, 1, 2, 3])
    return book(folder, {"Pivot": rows}, ["A3:A74"]), truth


@case((1,), (2,))
def annotated_by_influx(folder, n_fields):
    """A table for each series, with annotations, and a field in each row."""
    fields = ["bytes_recv", "bytes_sent"][:n_fields]
    truth = Truth(dict.fromkeys(fields, 0), ["r1", "r2"])
    text, kind = "", "dateTime:RFC3339"
    for i, (field, cell) in enumerate((f, c) for f in fields for c in truth.cells):
        text += "#group,false,false,true,true,false,false,true,true\r\n#default,mean,,,,,,,\r\n"
        text += f"#datatype,string,long,{kind},{kind},{kind},double,string,string\r\n"
        text += ",result,table,_start,_stop,_time,_value,_field,host\r\n"
        for t, value in truth.values[field][cell].items():
            text += f",,{i},2024-05-10T00:00:00Z,2024-05-13T00:00:00Z,{t:%Y-%m-%dT%H:%M:%SZ},"
            text += f"{value},{field},{cell}\r\n"
        text += "\r\n"
    return save(folder, text), truth


@case()
def json_of_an_interface(folder):
    """A list of objects with objects in them, as web services answer."""
    truth = Truth({"counts.car": 0, "counts.truck": 0}, ["G1", "G2"])
    rows = [
        {"gate": {"id": c}, "ts": int(t.timestamp() * 1000), "counts": {"car": a, "truck": b}}
        for t, c, a, b in truth.long.values.tolist()
    ]
    return save(folder, json.dumps(rows, indent=1), "gates.json"), truth


@case((".jsonl",), (".ndjson",))
def json_lines(folder, ending):
    """An object for each record, of a database or a log."""
    truth = Truth(LTE, ["A1", "B1"])
    frame = truth.long.rename(columns={"time": "ts"}).assign(ts=lambda f: f["ts"].astype(str))
    text = frame.to_json(orient="records", lines=True)
    return save(folder, text, f"kpi{ending}"), truth


@case((True,), (False,))
def whole_numbers_of_excel(folder, named):
    """Dates without a time of day: only a name shows that numbers are dates."""
    times = pd.date_range("2024-05-10", periods=40, freq="D")
    truth = Truth({"load": 0}, ["N1", "N2"], times, obey=None if named else "--time-format excel")
    text = lines(truth, ["Date" if named else "Time", "cell", "load"], lambda t, c: [
        str((t - pd.Timestamp("1899-12-30")).days), c])  # fmt: skip
    return save(folder, text), truth


def test_the_corpus_is_large():
    assert len(CASES) >= 60


def obey(path, truth, message, out):
    """Type the command again with an option that the message has, as it stands there."""
    options = [
        re.findall(r"--[a-z-]+ (?:'[^']*'|[^\s;,]+)", text) for text in (truth.obey, message)
    ]
    assert set(options[0]) <= set(options[1]), message
    arguments = ["prepare", "table", "--raw", str(path), "--out", str(out)]
    cli.main([*arguments, *shlex.split(truth.obey)], standalone_mode=False, obj={})
    return open_cube(out)


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", CASES)
def test_an_export_is_read_to_the_last_value_or_asks_once(name, tmp_path):
    write, variant = CASES[name]
    path, truth = write(tmp_path, *variant)
    if truth.obey is None:
        truth.check(read(path))
        return
    with pytest.raises(InputError) as refused:
        read(path)
    with obey(path, truth, refused.value.typed, tmp_path / "out.nc") as ds:
        truth.check(ds.load())


STYLES = st.fixed_dictionaries(
    {
        "sep": st.sampled_from([",", ";", "\t", "|"]),
        "style": st.sampled_from([".", ",", "1.000,5", "1,000.5", "1 000,5", "1'000.5", "e", ",e"]),
        "unit": st.sampled_from(["", "in names", "after", "in a column"]),
        "shuffled": st.booleans(),
        "flagged": st.booleans(),
        "encoding": st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
        "form": st.sampled_from(
            ["%Y-%m-%d %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%d.%m.%Y %H:%M"]
        ),
        "titles": st.integers(0, 3),
        "total": st.booleans(),
        "n_cells": st.integers(1, 4),
        "start": st.dates(datetime.date(2020, 1, 1), datetime.date(2028, 12, 1)),
    }
)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(style=STYLES)
def test_frames_in_random_styles_are_read_back(style, tmp_path):
    times = pd.date_range(style["start"], periods=30, freq="h")
    cells = [f"Zelle ü{i}" for i in range(style["n_cells"])]
    unit = style["unit"]
    load = "Last (GB)" if unit == "in names" else "Last"
    truth = Truth({load: 1} if unit == "in a column" else {load: 1, "Züge": 0}, cells, times)
    rows = [
        [t.strftime(style["form"]), c, *(number(v, style["style"]) for v in values)]
        for t, c, *values in truth.long.itertuples(index=False)
    ]
    path = save(tmp_path, styled(rows, truth, style), encoding=style["encoding"])
    ds = read(path)
    truth.check(ds)
    assert ds[load].attrs["units"] == ("GB" if unit else "1")


def styled(rows, truth, style):
    """Return the text of rows with a header and a footer, and mark some values as spoilt."""
    head, sep = ["Zeit", "Zelle", *truth.values], style["sep"]
    if style["unit"] == "after":
        rows = [[*row[:2], f"{row[2]} GB", *row[3:]] for row in rows]
    if style["unit"] == "in a column":
        head, rows = [*head, "Einheit"], [[*row, "GB"] for row in rows]
    if style["flagged"]:
        head, rows = [*head, "Status"], [[*row, "ok"] for row in rows]
        rows[7][-1] = "Fehler"
        for frame in truth.values.values():
            frame.iat[7 // len(truth.cells), 7 % len(truth.cells)] = np.nan
    if style["shuffled"]:
        rows = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    if style["total"]:
        rows = [*rows, ["Summe", "", "1", *("" for _ in head[3:])]]
    lines = [sep.join(f'"{f}"' if sep in f else f for f in row) for row in [head, *rows]]
    return "\n".join([*(f"Titel {i}" for i in range(style["titles"])), *lines, ""])


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", ["nokia-0", "daily_files-0", "daily_files-1", "daily_files-3"])
def test_python_opens_what_prepare_reads(name, tmp_path):
    path, truth = CASES[name][0](tmp_path, *CASES[name][1])
    truth.check(open_any(path))
    truth.check(open_any(str(path)))


def test_units_that_do_not_convert_are_refused_by_name(tmp_path):
    rows = [f"{t},{i}.5 {'MB' if i % 2 else '%'}" for i, t in enumerate(HOURS)]
    path = save(tmp_path, "\n".join(["time,load", *rows, ""]))
    with pytest.raises(InputError, match=r"'load' .* %, MB, .* convert"):
        read(path)
    for name, unit in {"a.csv": "MB", "b.csv": "%"}.items():
        day = {"a.csv": 10, "b.csv": 11}[name]
        rows = [f"{t},{i}.5 {unit}" for i, t in enumerate(HOURS) if t.day == day]
        (tmp_path / "all").mkdir(exist_ok=True)
        save(tmp_path / "all", "\n".join(["time,load", *rows, ""]), name)
    with pytest.raises(InputError, match=r"'load' .* MB in a\.csv, % in b\.csv"):
        read(tmp_path / "all")


@pytest.mark.parametrize("encoding", ["gb18030", "cp949"])
def test_signs_of_full_width_do_not_hide_an_encoding(tmp_path, encoding):
    time, cell, load, share = {
        "gb18030": ("开始时间", "小区", "小区下行流量", "利用率"),
        "cp949": ("시간", "기지국", "하향 트래픽", "사용률"),
    }[encoding]
    rows = [f"{t},{c},{i + 0.5},{i + 0.25}" for i, t in enumerate(HOURS) for c in "ab"]
    head = f"{time},{cell},{load}（MB）,{share}（％）"
    path = save(tmp_path, "\n".join([head, *rows, ""]), encoding=encoding)
    found = read(path, time=time, cell=cell)
    units = {name: values.attrs["units"] for name, values in found.data_vars.items()}
    assert units == {f"{load}（MB）": "MB", f"{share}（％）": "%"}


def test_columns_of_cells_have_one_unit(tmp_path):
    path, rows = tmp_path / "wide.csv", [(t, i + 1.5) for i, t in enumerate(HOURS)]

    def written(other):
        lines = [f"{t},{v} MB,{v * 1000 if t.day % 2 else v} {'kB' if t.day % 2 else 'MB'},0,"
                 f"{other(v)}" for t, v in rows]  # fmt: skip
        path.write_text("\n".join(["time,a,b,empty,d", *lines]) + "\n")
        return read(path, layout="wide")["value"]

    found = written(lambda v: f"{v / 1000} GB")
    expected = np.outer([v for _, v in rows], [1e6, 1e6, 0, 1e6])
    np.testing.assert_allclose(found, expected)
    assert found.attrs["units"] == "B"
    with pytest.raises(InputError, match=r"no unit \('d'\)"):
        written(str)


def test_units_are_known_by_their_spelling():
    assert [canonical(u) for u in ("Mb", "MB", "mb", "GByte", "MiB", "%", "cats")] == [
        "Mbit", "MB", "MB", "GB", "MiB", "%", ""]  # fmt: skip
    assert [canonical(u) for u in ("kb/s", "KB/s", "mb/s", "b/s", "MiB/s", "Kib/s")] == [
        "kbit/s", "kB/s", "Mbit/s", "bit/s", "MiB/s", "Kibit/s"]  # fmt: skip
    assert scale_of("TiB") == ("B", 2.0**40)


def test_gaps_between_files_are_named(tmp_path):
    for day in (1, 2, 4):
        times = pd.date_range(f"2024-05-0{day}", periods=24, freq="h")
        pd.DataFrame({"time": times, "cell": 1, "v": 1.0}).to_csv(
            tmp_path / f"d{day}.csv", index=day < 3
        )
    with pytest.raises(InputError, match=r"24 of 96 .* 2024-05-02 23:00:00 \(d2.csv, line 25\)"):
        read(tmp_path)


def test_files_that_contradict_each_other_are_named(tmp_path):
    times = pd.date_range("2024-05-01", periods=24, freq="h")
    for i in (0, 1):
        frame = pd.DataFrame({"time": times + i * pd.Timedelta("20h"), "cell": 1, "v": i + 1.0})
        frame.to_csv(tmp_path / f"d{i}.csv", index=False)
    with pytest.raises(InputError, match=r"d1\.csv, line 2: .* d0\.csv, line 22"):
        read(tmp_path)


def test_tables_beside_each_other_of_other_times_are_told_of(tmp_path, caplog):
    """As where the column of one day has another name."""
    for i, name in enumerate(["v", "v", "w"]):
        times = pd.date_range("2024-05-10", periods=24, freq="h") + pd.Timedelta(days=i)
        table = pd.DataFrame({"time": times, "cell": "a", name: 1.0})
        table.to_csv(tmp_path / f"d{i}.csv", index=False)
    ds = read(tmp_path)
    assert [int(ds[name].count()) for name in "vw"] == [48, 24]
    said = "of 72 rows of time and cell, some tables have fewer: 48 of d0.csv, 24 of d2.csv"
    assert said in caplog.text


def test_what_is_left_out_is_counted_and_named(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path, truth = CASES["zte-0"][0](tmp_path, ".")
    truth.check(read(path))
    assert mentions(caplog.text, "1 row:", "names", "51")
    path, truth = CASES["nokia-0"][0](tmp_path, ";", ",")
    truth.check(read(path))
    assert mentions(caplog.text, "UTF-8", "cp1252")
    assert mentions(caplog.text, "totals", "line 146 (Summe 99,5 7)")
    path, truth = CASES["steps_of_a_day_across-2"][0](tmp_path, 96, 0, True)
    assert list(read(path).coords) == ["time", "cell", "REGION"]
    assert mentions(caplog.text, "totals", "QT_VOLUME_24HOUR")
    assert "values: CT_RECORDS, CT_ALARM_24HOUR" in caplog.text
    path, truth = CASES["zip_with_a_readme"][0](tmp_path)
    truth.check(read(path))
    assert mentions(caplog.text, "days.zip", "README.txt")
    path, truth = CASES["units_that_change-0"][0](tmp_path, 0)
    assert read(path)["Traffic"].attrs["units"] == "B"
    assert mentions(caplog.text, "'Traffic'", "MB, kB", "B")


ENDS = {"german_road_counts": "Stunde", "english_motorways": "Time Period Ending",
        "hours_up_to_24": "Zeitpunkt"}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_ends_of_steps_are_said_and_resampled_by_their_begins(name, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path, truth = CASES[name][0](tmp_path)
    truth.check(read(path))
    said = [r for r in caplog.records if mentions(r.getMessage(), path.name, repr(ENDS[name]))][-1]
    ((_, advice),) = [(w, w.typed) for w in said.args if isinstance(w, Words)]
    options = dict(re.findall(r"--(resample|agg) (\w+)", advice))
    assert options == {"resample": "1h", "agg": "mean"}
    begins = truth.times - pd.Timedelta("1h")
    found = read(path, **options)
    np.testing.assert_array_equal(found["time"].values, begins.as_unit("ns"))
    truth.times = begins
    truth.check(found)
    sums = read(path, resample="1D", agg="sum")
    for service, frame in truth.values.items():
        wanted = frame.set_axis(begins).resample("1D").sum(min_count=24)
        kept = sums[service].to_pandas()
        kept.columns = kept.columns.astype(str)
        np.testing.assert_allclose(kept[truth.cells].to_numpy(), wanted.to_numpy())


@pytest.mark.parametrize("name", ["a_day_that_ends_after_midnight", "night_buses", "road_long-0"])
def test_begins_of_steps_are_not_called_ends(name, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path, truth = CASES[name][0](tmp_path, *CASES[name][1])
    truth.check(read(path))
    assert "holds the ends of steps" not in caplog.text


@pytest.mark.parametrize("form", ["%H:%M", "%H:%M:%S", "%-H Uhr", "%-H", "h%H"])
def test_24_in_any_form_tells_of_ends(form, tmp_path, caplog):
    """Also among the names of columns, and after more rows than show what a column holds."""
    caplog.set_level(logging.INFO)
    ends = [pd.Timestamp("2024-05-10") + pd.Timedelta(hours=h) for h in range(1, 25)]
    clocks = [t.strftime(form).replace("00", "24", 1) if t.hour == 0 else t.strftime(form)
              for t in ends]  # fmt: skip
    clocks[-1] = {"%-H Uhr": "24 Uhr", "%-H": "24"}.get(form, clocks[-1])
    cells = [f"c{i}" for i in range(120)]
    if form == "h%H":
        rows = [["date", "cell", *clocks], *(["2024-05-10", c, *range(24)] for c in cells)]
        name = clocks[-1].removeprefix("h")
    else:
        rows = [["Datum", "Stunde", "cell", "v"]]
        rows += [["2024-05-10", at, c, v] for v, at in enumerate(clocks) for c in cells]
        name = "Stunde"
    path = save(tmp_path, "\n".join(",".join(map(str, row)) for row in rows) + "\n")
    (values,) = read(path).data_vars.values()
    assert values["time"].values[-1] == np.datetime64("2024-05-11T00:00")
    assert mentions(caplog.text, path.name, repr(name), "ends")
    (values,) = read(path, resample="1h", agg="mean").data_vars.values()
    assert values["time"].values[0] == np.datetime64("2024-05-10T00:00")
    np.testing.assert_array_equal(values[:, 7], range(24))


@pytest.mark.parametrize("day", ["2024-03-31", "2024-10-27"])
def test_ends_on_a_clock_that_changes_become_begins_in_utc(day, tmp_path):
    zone = "Europe/Berlin"
    begins = pd.date_range(f"{day} 00:00", f"{day} 23:00", freq="h", tz=zone)
    ends = begins + pd.Timedelta("1h")
    shown = [f"{e:%Y-%m-%d %H:%M}" if e.hour else f"{day} 24:00" for e in ends]
    rows = [f"{t},a,{v}" for v, t in enumerate(shown)]
    path = save(tmp_path, "\n".join(["time,cell,v", *rows, ""]))
    for resample, agg in (("1h", "sum"), ("1D", "sum")):
        found = read(path, time_zone=zone, clock="local", resample=resample, agg=agg)["v"]
        n = len(begins)
        wanted = range(n) if resample == "1h" else [n * (n - 1) / 2]
        np.testing.assert_array_equal(found.values[:, 0], wanted)
    assert found["time"].values == np.datetime64(day)
    hours = read(path, time_zone=zone, clock="local", resample="1h", agg="mean")
    np.testing.assert_array_equal(hours.indexes["time"], begins.tz_convert(None))


@pytest.mark.parametrize(
    "name", ["EndTime", "PeriodEnd", "HourEnding", "endtime", "ora fine", "Hora final", "结束时间"]
)
def test_ends_are_known_by_their_name(name, tmp_path):
    ends = pd.date_range("2024-05-10 00:15", periods=96, freq="15min")
    rows = [f"{t:%Y-%m-%d %H:%M},a,{v}" for v, t in enumerate(ends)]
    path = save(tmp_path, "\n".join([f"{name},cell,v", *rows, ""]))
    hours = read(path, time=name, resample="1h", agg="sum")["v"]
    np.testing.assert_array_equal(hours[:, 0], np.arange(96).reshape(24, 4).sum(axis=1))


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y"])
@pytest.mark.parametrize("n", [24, 9])
def test_a_later_delivery_has_ends_like_the_first(form, n, tmp_path):
    """Also a part of a day, without 24:00; its 0:00 would be of another kind."""

    def saved(day, hours):
        rows = [f"{day:{form}} {h:02}:00,a,{h}" for h in hours]
        return save(tmp_path, "\n".join(["time,cell,v", *rows, ""]))

    first = read(saved(pd.Timestamp("2024-05-30"), range(1, 25)), resample="3h", agg="sum")
    again = saved(pd.Timestamp("2024-05-31"), range(1, n + 1))
    later = open_again(again, preparation_of(first))["v"]
    assert later["time"].values[0] == np.datetime64("2024-05-31T00:00")
    np.testing.assert_array_equal(later[:, 0], np.arange(1, n + 1).reshape(-1, 3).sum(axis=1))
    with pytest.raises(InputError, match="'time' has 0:00, expected 24:00"):
        open_again(saved(pd.Timestamp("2024-05-31"), range(9)), preparation_of(first))


@pytest.mark.parametrize(
    ("encoding", "names", "sites"),
    [
        *((e, "时间,小区名称,流量（MB）", ("一乙", "一甲")) for e in ("utf-16", "utf-16-le")),
        *((e, "时间,小区名称,流量（MB）", ("一乙", "一甲")) for e in ("utf-16-be", "gb18030")),
        ("gb18030", "时间,小区,流量（MB）", ("A", "B")),
        ("big5", "時間,小區名稱,流量（MB）", ("一乙", "一甲")),
        *((e, "時刻,基地局,トラフィック量（MB）", ("大阪", "東京")) for e in ("cp932", "euc_jp")),
        *((e, "日時,地点,下り（MB）", ("新宿駅前", "渋谷")) for e in ("cp932", "euc_jp")),
        *((e, "日付,ｾﾙ,通信量（MB）", ("A", "B")) for e in ("cp932", "euc_jp")),
        *((e, "time,cell,下り（MB）", ("A", "B")) for e in ("cp932", "euc_jp")),
    ],
)
def test_eastern_texts_in_any_encoding(encoding, names, sites, tmp_path):
    """UTF-16 also without its mark, though few bytes of the names are 0."""
    rows = [f"2024-05-10 {h:02}:00,{site},{h}" for h in range(24) for site in sites]
    path = tmp_path / "a.csv"
    path.write_bytes("\n".join([names, *rows, ""]).encode(encoding))
    values = read(path, cell=names.split(",")[1])[names.split(",")[2]]
    assert (values.attrs["units"], [*values["cell"].values]) == ("MB", [*sites])
    np.testing.assert_array_equal(values.values, np.tile(np.arange(24), (2, 1)).T)


@pytest.mark.parametrize("separator", [";", ","])
@pytest.mark.parametrize(("first", "wanted"), [("0.512", 1.234), ("1.234,5", 1234)])
def test_later_numbers_have_the_decimal_mark_of_the_first(first, wanted, separator, tmp_path):
    """Also where theirs alone would leave it open."""

    def saved(number, day):
        rows = [f'2024-05-{day} {h:02}:00{separator}a{separator}"{number}"' for h in range(24)]
        return save(tmp_path, "\n".join([f"time{separator}cell{separator}v", *rows, ""]))

    preparation = preparation_of(read(saved(first, 10)))
    later = open_again(saved("1.234", 11), preparation)["v"]
    np.testing.assert_allclose(later, wanted)


@pytest.mark.parametrize(("name", "unit"), [("Availability (%)", ""), ("v", " %")])
@pytest.mark.parametrize("number", ["99.123", "99,123"])
def test_shares_are_no_thousands(number, name, unit, tmp_path):
    rows = [f"2024-05-10 {h:02}:00;a;{number}{unit}" for h in range(24)]
    (values,) = read(save(tmp_path, "\n".join([f"time;cell;{name}", *rows, ""]))).data_vars.values()
    np.testing.assert_allclose(values, 99.123)
    assert values.attrs["units"] == "%"


@pytest.mark.parametrize(
    "unread",
    [
        {"name": "load", "encoding": "cp1252", "sheet": "Data", "records": "data.rows"},
        {"resample": "1h", "agg": "count", "values": "v", "duplicates": "sum"},
    ],
)
@pytest.mark.parametrize("as_frame", [False, True])
def test_noted_options_that_later_records_do_not_read_are_no_error(unread, as_frame, tmp_path):
    """Earlier versions noted them, and a later delivery may be in another format."""
    rows = [f"2024-05-10 {h:02}:00,a,{h}" for h in range(24)]
    path = save(tmp_path, "\n".join(["time,cell,v", *rows, ""]))
    noted = {"data_set": "table", "options": unread, "cell": "a"}
    (values,) = open_again(pd.read_csv(path) if as_frame else path, noted).data_vars.values()
    assert values.values[:, 0].tolist() == ([1] * 24 if "agg" in unread else [*range(24)])
    with pytest.raises(InputError):
        read(path, **unread)


@pytest.mark.parametrize("first", [0, 1])
def test_25_hours_of_a_day_are_refused(first, tmp_path):
    """Its hours would be one off from the second 2:00 on, or be of two kinds."""
    rows = [f"2024-10-27,{hour},a,1" for hour in range(first, first + 25)]
    path = save(tmp_path, "\n".join(["Date,HE,cell,v", *rows, ""]))
    with pytest.raises(InputError, match=rf"'HE' has the hours {first} to {first + 24}, expected"):
        read(path, time_zone="Europe/Rome", clock="local", resample="1h", agg="sum")


def test_days_of_a_month_are_no_ends(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    times = pd.date_range("2024-05-01", periods=25 * 24, freq="h")
    rows = [f"{t.year},{t.month},{t.day},{t.hour},a,1.5" for t in times]
    read(save(tmp_path, "\n".join(["Year,Month,Day,Hour,cell,v", *rows, ""])))
    assert "ends of steps" not in caplog.text


def test_totals_of_a_table_without_times_are_no_steps(tmp_path, caplog):
    path = save(tmp_path, "shift,load\na,1\nb,2\nSubtotal,3\na,4\nb,5\nTotal,12\n")
    ds = read(path, start="2024-05-10", step="1h", layout="wide")
    assert ds["value"].values.ravel().tolist() == [1, 2, 4, 5]
    assert mentions(caplog.text, "2 rows: totals", "4")


def test_a_line_that_may_be_cut_is_refused_but_at_the_end(tmp_path):
    head, rows = "Year,Month,Day,Hour,load\n", [f"2024,5,{d},7,{d}\n" for d in range(10, 20)]
    path = save(tmp_path, f"{head}{''.join(rows)}\nExported by Ann\n")
    assert read(path)["value"].size == 10
    save(tmp_path, f"{head}{''.join(rows[:5])}Exported by Ann\n{''.join(rows[5:])}")
    with pytest.raises(InputError, match=r"line 7: 1 field.* 5.* 1"):
        read(path)


def test_a_zip_that_unpacks_to_too_much_is_refused(tmp_path):
    with zipfile.ZipFile(
        tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as packed:
        packed.writestr("a.csv", bytes(2**28))
    with pytest.raises(InputError, match=r"bomb\.zip: unpacked"):
        read(tmp_path / "bomb.zip")
    (tmp_path / "no.zip").write_bytes(io.BytesIO(b"PK\x03\x04no").getvalue())
    with pytest.raises(InputError, match=r"no\.zip: .* as a zip"):
        read(tmp_path / "no.zip")


@pytest.mark.parametrize("values", ["load", None, "load,users"])
def test_files_of_other_columns_give_the_values_that_all_have(values, tmp_path, caplog):
    for day, more in ((4, ""), (5, ",users"), (6, "")):
        rows = [f"2024-03-0{day} {h:02}:00,A,{day}{h:02}{more and ',7'}" for h in range(24)]
        save(tmp_path, "\n".join([f"time,cell,load{more}", *rows, ""]), f"d{day}.csv")
    if values == "load":
        found = read(tmp_path, values=values)
        assert [*found] == ["load"]
        truth = [100 * day + h for day in (4, 5, 6) for h in range(24)]
        np.testing.assert_array_equal(found["load"].values[:, 0], truth)
        assert "users of d5.csv" in caplog.text
    else:
        lacking = "no column 'users' in d4.csv.*" if values else ""
        with pytest.raises(InputError, match=rf"{lacking}d4\.csv has .* d5\.csv has .*values"):
            read(tmp_path, values=values)


@pytest.mark.parametrize("minutes", [15, 60])
def test_times_that_may_be_ends_are_named_and_advice_on_them_is_right(minutes, tmp_path, caplog):
    times = pd.date_range("2024-03-04", periods=2 * 24 * 60 // minutes + 1, freq=f"{minutes}min")
    rows = [f"{t},A,{(t - times[1]).days * 24 + (t - times[1]).seconds // 3600}" for t in times[1:]]
    path = save(tmp_path, "\n".join(["time,cell,v", *rows, ""]))
    read(path)
    assert "'time end'" in caplog.text
    path.write_text(path.read_text().replace("time,", "time end,"))
    hours = read(path, resample="1h", agg="mean")["v"]
    np.testing.assert_array_equal(hours.values[:, 0], np.arange(48))
    assert hours["time"].values[0] == np.datetime64("2024-03-04T00:00")
    caplog.clear()
    read(save(tmp_path, "\n".join(["time,cell,v", *(f"{t},A,1" for t in times[:-1]), ""])))
    assert "time end" not in caplog.text


def test_whole_dates_and_times_of_digits_are_found_by_any_name(tmp_path):
    """Also where decimal commas make numbers of other columns, and with a colon in the time."""
    for form in ("%Y%m%d%H%M", "%Y%m%d %H:%M", "%Y%m%d %H:%M:%S"):
        rows = [f"{t.strftime(form)};{i},5;{i},25" for i, t in enumerate(HOURS)]
        path = save(tmp_path, "\n".join(["Period End;a;b", *rows, ""]))
        found = read(path, layout="wide")["value"]
        np.testing.assert_array_equal(found.values[:, 0], np.arange(len(HOURS)) + 0.5)
        assert found["time"].values[0] == HOURS.values[0]


def test_dates_with_points_decide_no_mark_where_commas_separate_fields(tmp_path):
    rows = [f'{t:%d.%m.%Y},{t:%H:%M},a,"{200 + i},387"' for i, t in enumerate(HOURS)]
    path = save(tmp_path, "\n".join(["Date,Time,cell,v", *rows, ""]))
    with pytest.raises(InputError, match="'200,387'") as error:
        read(path)
    assert mentions(str(error.value), "decimal")


def test_texts_of_the_west_are_not_taken_for_eastern_ones(tmp_path):
    rows = [f"{t},A,{i}" for i, t in enumerate(HOURS)]
    for name in ("LÄNGE ÄM, ZÄHLER, °C", "Größe", "Tráfico (m³)"):
        text = "\n".join([f"time;cell;{name}".replace(",", ""), *rows, ""]).replace(",", ";")
        path = save(tmp_path, text, encoding="cp1252")
        assert next(iter(read(path))).startswith(name.split(",")[0].split(" (")[0])


def test_only_a_column_that_numbers_the_rows_is_no_value(caplog):
    caplog.set_level(logging.INFO)
    known = pd.DataFrame({"time": HOURS, "cell": "A", "v": np.arange(len(HOURS)) * 1.5})
    counted = known.assign(n=np.arange(len(HOURS)) + 1, late=pd.Series({1: 2.0}))
    assert [*read(counted)] == ["v", "late"]
    assert "rows: n;" in caplog.text
