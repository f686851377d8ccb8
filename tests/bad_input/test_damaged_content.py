"""What the command says to content that cannot be right: door × damage, and the words of the error.

Each case must exit with code 2 and one line that names the file, what was found, what was expected
or what to do; nothing is left behind.
"""

import pickle
import re
import zipfile

import h5py
import numpy as np
import polars as pl
import pytest
from damages import Bomb, json_of, npy_header
from safetensors.numpy import load_file, save_file

from data_prep.base.files import checksum

pytestmark = pytest.mark.attack("damaged files")


def text(*pairs, times=1):
    """Replaces parts of a text."""

    def damage(path):
        content = path.read_text()
        for before, after in pairs:
            assert before in content
            content = content.replace(before, after, times)
        path.write_text(content)

    return damage


def whole(content):
    """Puts other content in its place."""
    return lambda path: path.write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


def cut(n_bytes):
    """Takes the last bytes away."""
    return lambda path: path.write_bytes(path.read_bytes()[:-n_bytes])


def first_lines(n):
    """Keeps only the first lines, or all but the last ones."""
    return lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:n]))


def hdf5(change):
    """Changes an HDF5 file, netCDF included."""

    def damage(path):
        with h5py.File(path, "a") as file:
            change(file)

    return damage


def array(name, values, **attributes):
    """Puts another array in the place of one, with its attributes."""

    def change(file):
        kept = dict(file[name].attrs) if name in file else {}
        file.pop(name, None)
        file[name] = values
        file[name].attrs.update({k: v for k, v in kept.items() if k.isascii() and k.islower()})
        file[name].attrs.update(attributes)

    return hdf5(change)


def value(name, at, what):
    """Puts one value into an array."""

    def change(file):
        file[name][at] = what

    return hdf5(change)


def unallocated(name, shape):
    """An array that takes no room in the file, of any shape."""

    def change(file):
        file.pop(name, None)
        file.create_dataset(name, shape, "f8", chunks=(1,) * len(shape))

    return hdf5(change)


def elsewhere(name):
    """An array that is to be read from another file."""

    def change(file):
        file.pop(name, None)
        file[name] = h5py.ExternalLink("/etc/hostname", "/")

    return hdf5(change)


def raw_bytes_of(path_of, name):
    """An array whose values are the bytes of any other file."""

    def change(file):
        shape = file[name].shape
        file.pop(name, None)
        file.create_dataset(name, shape, "u1", external=[(path_of, 0, 2**20)])

    return hdf5(change)


def attribute(name, key, what):
    return hdf5(lambda file: (file[name] if name else file).attrs.update({key: what}))


def arrays(change):
    """Changes saved arrays and their checksum, as someone would who means harm."""

    def damage(path):
        found = load_file(path)
        change(found)
        save_file(found, path)
        mended = {"state": checksum(path)}
        json_of(lambda about: about.update(mended))(path.with_name("forecaster.json"))

    return damage


def npz(**members):
    """Writes another `.npz`; bytes are taken as the content of a member."""

    def damage(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
            for name, content in members.items():
                if isinstance(content, bytes):
                    z.writestr(f"{name}.npy", content)
                else:
                    with z.open(f"{name}.npy", "w") as file:
                        np.lib.format.write_array(file, content)

    return damage


def zipped(members, edit=lambda info: None):
    def damage(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
            for name, content in members.items():
                info = zipfile.ZipInfo(name)
                info.compress_type = zipfile.ZIP_DEFLATED
                edit(info)
                z.writestr(info, content)

    return damage


def table(**columns):
    """Writes another Parquet table."""
    return lambda path: pl.DataFrame(columns, strict=False).write_parquet(path)


def pickled_labels(file):
    """Labels as PyTables keeps objects: pickled, in bytes."""
    del file["df/axis0"]
    axis = file.create_dataset("df/axis0", (1,), dtype=h5py.vlen_dtype(np.uint8))
    axis[0] = np.frombuffer(pickle.dumps(Bomb()), dtype=np.uint8)


IDS = np.array(["773869", "767541", "717447"])
HARMFUL = np.array([Bomb()] * 3)
MS, LATER = "1383260400000", "1383261000000"
ROW = f"1\t{MS}\t39\t1.5\t\t0.25\t\t10.75\n"
LONG_TIMES = ["2013-11-01T00:00", "2013-11-01T01:00", "2013-11-01T02:00"]

RAW_DAY = {
    "is separated by commas": (text(("\t", ","), times=-1), "line 1: .* separated by commas"),
    "is separated by spaces": (text(("\t", " "), times=-1), "line 1: .* white space between"),
    "holds a word": (text(("10.75", "many")), "line 1: internet is 'many', expected a number"),
    "holds a negative number": (text(("10.75", "-1")), "line 1: internet is '-1', expected a num"),
    "holds infinity": (text(("10.75", "inf")), "line 1: internet is 'inf', expected a number"),
    "has a row twice": (text((ROW, ROW * 2)), "lines 1 and 2 are the same square 1, inter"),
    "has an unknown cell": (text(("1\t", "10001\t")), "line 1: square id 10001 is not one of"),
    "has a time of UTC": (text((MS, "1383264000000"), times=-1), "lines 1 and 7 are the same"),
    "has a time of another day": (text((MS, "1383174000000")), "line 1: .* outside 2013-11-01"),
    "has a time in seconds": (text((MS, MS[:-3])), "line 1: .* not on the ten-minute grid"),
    "lacks an interval": (
        text((ROW, ""), (ROW.replace("1\t1", "2\t1", 1), "")),
        r"has 143 of 144 intervals \(missing 00:00 local\).* --allow-gaps",
    ),
    "is cut within a line": (lambda p: p.write_bytes(p.read_bytes()[:-20]), "expected 8"),
    "is cut between lines": (
        lambda p: p.write_text("".join(p.read_text().splitlines(True)[:100])),
        "has 100 of 144 intervals",
    ),
    "is one endless line": (whole(b"1" * 5_000_000), "line 1: found 1 tab-separated field"),
    "has an endless number": (text(("10.75", "0." + "0" * 5_000_000)), "line [12]: "),
    "is a zip archive": (whole(b"PK\x03\x04 and more"), "this is a zip archive.*; unpack it first"),
}  # fmt: skip

GRID = {
    "has a cell twice": (text(('"cellId": 2', '"cellId": 1')), "cellId 1 occurs more than once"),
    "has a huge id": (text(('"cellId": 2', f'"cellId": {10**30}')), "expected a whole number"),
    "has endless digits": (text(('"cellId": 2', '"cellId": ' + "9" * 5000)), "as GeoJSON"),
    "is in metres": (text(("45", "5034000"), times=-1), "is not a polygon in degrees"),
    "has an endless corner": (text(("45]", f"{10**400}]")), "is not a polygon in degrees"),
    "has a NaN corner": (text(("45]", "NaN]")), "is not a polygon in degrees"),
    "has a list as geometry": (text(('"geometry": {', '"geometry": [1], "x": {')), "not a polygon"),
}

METR_LA = {
    "has negative speeds": (value("df/block0_values", (1, 1), -1), "speed -1.0 at 2012-03-01"),
    "has infinite speeds": (value("df/block0_values", (1, 1), np.inf), "speed inf at 2012-03-01"),
    "repeats a time": (value("df/axis1", 1, 1330560000 * 10**9), "follows 2012-03-01 00:00"),
    "goes back in time": (value("df/axis1", 9, 1330560000 * 10**9), "expected increasing times"),
    "has text as speeds": (
        array("df/block0_values", np.full((24, 3), b"60")), r"block0_values is \|S2 of shape"),
    "has another shape": (array("df/block0_values", np.zeros((23, 3))), "expected numbers of sha"),
    "is empty inside": (hdf5(lambda f: f.clear()), "0 frames in pandas' fixed format"),
    "has no rows": (
        lambda p: [array("df/block0_values", np.zeros((0, 3)))(p),
                   array("df/axis1", np.zeros(0, "i8"))(p)],
        "at least one"),
    "declares 80 TB": (unallocated("df/block0_values", (10**6, 10**7)), "would take 8e.04 GB"),
    "declares endless times": (unallocated("df/axis1", (2**50,)), "/df/axis1 would take"),
    "has times of no array": (
        hdf5(lambda f: [f["df"].pop("axis1"), f["df"].create_group("axis1")]), "holds a group"),
    "has a pickle as labels": (
        hdf5(pickled_labels),
        "which may be pickled, and a pickle can run any code"),
    "names a sensor twice": (array("df/axis0", np.array([b"7", b"7", b"8"])), "has 7 more than"),
    "has labels of another alphabet": (
        array("df/axis0", np.array([b"\xff", b"7", b"8"])), "cannot be read"),
    "has odd numbers of blocks": (attribute("df", "nblocks", "many"), "cannot be read as a pandas"),
    "is read from another file": (elsewhere("df/block0_values"), "refers to another file"),
    "holds bytes of another file": (
        raw_bytes_of("/etc/hostname", "df/block0_values"), "refers to another file"),
}  # fmt: skip

ADJACENCY = {
    "is a pickle inside": (
        lambda p: np.savez(p, sensor_id=IDS, adjacency=HARMFUL),
        "holds objects, which are pickled",
    ),
    "is text": (npz(sensor_id=IDS, adjacency=np.full((3, 3), "1")), "adjacency of shape"),
    "has another shape": (
        npz(sensor_id=IDS, adjacency=np.eye(2)),
        "adjacency of shape .2, 2. for 3",
    ),
    "is infinite": (
        npz(sensor_id=IDS, adjacency=np.full((3, 3), np.inf)),
        "expected finite numbers",
    ),
    "is negative": (npz(sensor_id=IDS, adjacency=-np.eye(3)), "expected finite numbers from 0 up"),
    "has no ids": (npz(adjacency=np.eye(3)), "'sensor_id' and 'adjacency' .*no item named 'sensor"),
    "has other ids": (npz(sensor_id=IDS[[0, 0, 1]], adjacency=np.eye(3)), "no sensor 717447"),
    "declares 80 TB": (
        npz(sensor_id=IDS, adjacency=npy_header((10**6, 10**7), "<f8")),
        "does not fit",
    ),
    "declares objects": (
        npz(sensor_id=IDS, adjacency=npy_header((3, 3), "|O")),
        "which are pickled",
    ),
    "declares nonsense": (
        npz(sensor_id=IDS, adjacency=npy_header("__import__('os')", "<f8")),
        "as plain arr",
    ),
}

CSV_OF_SENSORS = {
    "distances.csv": {
        "has a negative distance": (text((",100\n", ",-100\n")), "line 5: cost -100 is below 0"),
        "has a road twice": (text((",200\n", ",200\n773869,773869,5\n")), "already has a distance"),
        "holds a word": (text((",100\n", ",far\n")), "line 5: column 'cost' holds 'far'"),
    },
    "locations.csv": {
        "is swapped": (text(("latitude,longitude", "longitude,latitude")), "they may be swapped"),
        "lacks a sensor": (text(("717447", "1")), "no sensor 717447"),
        "has a sensor twice": (text(("717447", "767541")), "no sensor 717447"),
    },
}

FEDDA = {
    "has negative activity": (value("sms", (1, 1), -1), "/sms holds -1.0 at step 1, cell 2"),
    "has infinite activity": (value("net", (1, 1), np.inf), "/net holds inf at step 1, cell 2"),
    "has times in milliseconds": (array("idx", 1000 * np.arange(4) + int(MS)), "like milliseconds"),
    "has one absurd time": (
        value("idx", 2, -(2**60)),
        "has -1152921504606846976, which looks like",
    ),
    "repeats a time": (value("idx", 1, 1383260400), "time steps have no row, the first after"),
    "goes back in time": (array("idx", 1383260400 - 3600 * np.arange(4)), "out of order"),
    "has a gap of years": (value("idx", 3, 1893456000), "time steps have no row, the first after"),
    "has a cell twice": (array("cell", np.array([1, 1, 2])), "holds 1 more than once"),
    "has a huge cell": (array("cell", np.array([1, 2, 2**60])), "whole numbers from 1 up"),
    "has text as cells": (array("cell", np.array([b"a", b"b", b"c"])), "cell is |S1 of shape"),
    "has text as activity": (
        array("sms", np.full((4, 3), b"1")),
        "/sms holds |S1, expected numbers",
    ),
    "has groups for arrays": (
        hdf5(lambda f: [f.pop("idx"), f.create_group("idx")]),
        "a group, expec",
    ),
    "has nothing for an array": (
        array("cell", h5py.Empty("f8")),
        "/cell holds nothing, expected an",
    ),
    "declares 80 TB": (unallocated("sms", (4, 10**13)), "/sms would take 3.2e.05 GB of memory"),
    "declares endless times": (unallocated("idx", (2**50,)), "/idx would take"),
    "is read from another file": (elsewhere("sms"), "refers to another file"),
}

CUBE = {
    "is infinite": (value("sms", (1, 1), np.inf), "sms is inf at 2013-11-01 01:00:00, cell 22"),
    "has an absurd value": (
        value("sms", (1, 1), -1e17),
        "sms is -1e.17 at .*, cell 22, expected at",
    ),
    "holds text": (array("internet", np.full((240, 3), b"1")), "no variable|holds|cannot be read"),
    "has uneven times": (value("time", 9, 7), "time steps are not even|does not increase"),
    "has no times": (array("time", np.full(240, b"x")), "no dimension|not dates|cannot be read"),
    "has times of no calendar": (
        attribute("time", "units", "moons since Caesar"),
        "cannot be read",
    ),
    "has a cell twice": (value("cell", 1, 11), "cell 11 occurs more than once"),
    "has a foreign clock": (
        attribute("", "clock", "sun"),
        "unknown clock in town.nc 'sun'; choose",
    ),
    "has many clocks": (attribute("", "clock", ["utc", "local"]), "unknown clock in town.nc"),
    "is of no time zone": (
        attribute("", "time_zone", "Mars/Base"),
        "unknown time zone 'Mars/Base'",
    ),
    "has doubts about zeros": (attribute("sms", "zero_is_missing", [0, 1]), "has zero_is_missing"),
    "is scaled by a word": (attribute("sms", "scale_factor", "ten"), "cannot be read|expected"),
    "is read from another file": (elsewhere("sms"), "refers to another file"),
    "is no cube": (hdf5(lambda f: f.clear()), "no dimension 'time' with a coordinate"),
}

CSV = {
    "has negative infinity": (text((",3.0\n", ",-inf\n")), "line 5: column 'speed' holds '-inf'"),
    "holds a word": (text((",3.0\n", ",fast\n")), "line 5: column 'speed' holds 'fast'"),
    "has a row twice": (text(("01:00:00,2", "01:00:00,1")), "line 5: .* is already in line 4"),
    "lacks a cell of a row": (text(("01:00:00,2", "01:00:00,")), "line 5: empty cell id"),
    "mixes time zones": (text(("01:00:00", "01:00:00Z")), "line 4: .* mix time zones"),
    "has a time that is none": (text(("01:00:00", "01:99:00")), "line 4: cannot read time"),
    "has uneven times": (text(("03:00:00", "03:07:00"), times=-1), "time steps are not even"),
    "has a gap of years": (text(("2013-11-01 05", "2199-11-01 05"), times=-1), "have no row"),
    "lacks a field": (text((",2,3.0", ",2")), "line 5: 2 fields, expected 3"),
    "has a field too many": (text((",2,3.0", ",2,3.0,4")), "line 5: 4 fields, expected 3"),
    "is separated by ^": (text((",", "^"), times=-1), "no column of numbers beside time.c"),
    "has a column twice": (text(("cell,speed", "cell,cell")), "line 1: column 'cell' more"),
    "has an endless field": (text((",3.0\n", ",3.0" + "0" * 200_000 + ",1\n")), "long.csv"),
    "has a huge number": (text((",3.0\n", ",1e308\n")), "line 5: column 'speed' holds '1e.308'"),
    "is cut within its last number": (
        whole("time,cell,speed\n" + "".join(f"2024-01-0{i},1,{i}.25\n" for i in range(1, 8))[:-2]),
        "line 8: '7.2' has fewer decimals than all before and no line end"),
    "has an open quote": (text(("time,", '"time,')), "long.csv"),
}  # fmt: skip

PARQUET = {
    "holds text": (table(time=LONG_TIMES, cell=[1] * 3, v=["a", "b", "c"]), "no column of num"),
    "holds infinity": (table(time=LONG_TIMES, cell=[1] * 3, v=[1.0, np.inf, 2]), "row 2: column"),
    "holds lists": (table(time=LONG_TIMES, cell=[1] * 3, v=[[1]] * 3), "holds List.Int64., expe"),
    "holds no rows": (table(time=[], cell=[], v=[]), "0 rows and 3 columns"),
    "has a row twice": (
        table(time=[LONG_TIMES[0]] * 3, cell=[1] * 3, v=[1, 2, 3]), "row 2: .* already in row 1"),
    "has fractions as cells": (table(time=LONG_TIMES, cell=[0.5] * 3, v=[1, 2, 3]), "cell id 0.5"),
}  # fmt: skip

BENCHMARK = {
    "sets the method for all": (text(("[settings]", '[settings]\nmethod = "solo"')), "method"),
    "has a list as method": (
        text(('["last_value"]', "[{ method = [1] }]")),
        "unknown method|method",
    ),
    "has a negative seed": (text(("services", "seeds = [-1]\nservices")), "seed"),
    "has a huge seed": (text(("services", f"seeds = [{2**70}]\nservices")), "seed"),
    "has an infinite number": (text(("[settings]", "[settings]\nlr = inf")), "lr"),
    "has a word for a number": (
        text(("[settings]", '[settings]\nrounds = "many"')),
        "rounds is 'many'",
    ),
    "has a negative number": (
        text(("[settings]", "[settings]\nbatch_size = -1")),
        "batch_size is -1",
    ),
    "has a key twice": (text(("[settings]", "[settings]\nrounds = 1\nrounds = 2")), "is not TOML"),
    "has a split that is none": (text(("days:7,1,2", "days:7,x,2")), "split"),
    "is nested without end": (whole("a = " + "[" * 50_000), "is not TOML"),
    "has endless digits": (whole("a = " + "9" * 5000), "bench.toml"),
}

FORECASTER = {
    "is of a later version": (json_of(lambda a: a.update(format=99)), "format 99, this version r"),
    "lacks its cells": (json_of(lambda a: a.pop("cells")), "no 'cells' in the saved model"),
    "has other cells": (json_of(lambda a: a.update(cells=[1, 2])), "run-fuels/model"),
    "has a cell twice": (json_of(lambda a: a.update(cells=[11, 11, 22])), "cell 11 occurs more"),
    "has nested cells": (json_of(lambda a: a.update(cells=[[1], [2], [3]])), "run-fuels/model"),
    "has a word as cells": (json_of(lambda a: a.update(cells="abc")), "run-fuels/model"),
    "has no step": (json_of(lambda a: a.update(step="soon")), "run-fuels/model"),
    "has a negative step": (json_of(lambda a: a.update(step="-1h")), "run-fuels/model"),
    "has settings of no kind": (json_of(lambda a: a.update(settings=[1])), "run-fuels/model"),
    "has an unknown setting": (json_of(lambda a: a["settings"].update(ta=1)), "unknown option"),
    "is of an unknown method": (json_of(lambda a: a["settings"].update(method="x")), "unknown met"),
    "has another size": (json_of(lambda a: a["settings"].update(hidden_size=9)), "run-fuels/model"),
    "has a word as round": (json_of(lambda a: a.update(round="x")), "run-fuels/model"),
    "reaches back without end": (
        json_of(lambda a: a["settings"].update(periods=10**6, period=10**6)), "GB of memory"),
}  # fmt: skip

STATE = {
    "has one byte changed": (
        lambda p: p.write_bytes(p.read_bytes()[:-1] + b"\x00"), "cannot be trusted: it has sha256"),
    "lacks an array": (arrays(lambda a: a.pop("scaler/mean")), "no 'scaler/mean' in the sav"),
    "lacks a parameter": (
        arrays(lambda a: a.pop(next(n for n in a if "params/encoder" in n))), "run-fuels/model"),
    "has another shape": (arrays(lambda a: a.update({"scaler/mean": np.ones(2)})), "run-fuels"),
    "has a foreign name": (arrays(lambda a: a.update(x=np.ones(2))), "run-fuels/model"),
    "has text as numbers": (
        lambda p: arrays(lambda a: a.update({n: v.astype(np.uint8) for n, v in a.items()}))(p),
        "run-fuels/model"),
    "has a huge header": (
        whole((2**62).to_bytes(8, "little") + b"{}"), "cannot be"),
    "has a header of 99 MB": (
        whole((99_000_000).to_bytes(8, "little") + b"{" + b" " * 1000), "cannot be"),
    "declares more than it has": (
        whole(b"A\0\0\0\0\0\0\0" b'{"a":{"dtype":"F64","shape":[999999999999],'
              b'"data_offsets":[0,8]}}' + bytes(8)),
        "cannot be"),
}  # fmt: skip

RUN = {
    "run.json": {
        "lacks its settings": (json_of(lambda a: a.pop("settings")), "no settings in it"),
        "has settings of no kind": (json_of(lambda a: a.update(settings=[])), "no settings in it"),
        "has a list of lines": (json_of(lambda a: a.update(lines=[])), "no lines in it"),
        "has a list as service": (json_of(lambda a: a.update(service=["a"])), "no service in it"),
    },
    "metrics.csv": {
        "lacks a column": (text((",value", ",valeu")), "no column 'value'"),
        "has words for numbers": (text(("raw_mae,", "raw_mae,x")), "no numbers in column 'value'"),
        "lacks a field": (text(("raw_mae,", "raw_mae,1,2,")), "cannot be read as a table|no"),
        "is cut": (cut(1), r"metrics\.csv: line \d+, the last one, was cut"),
        "is cut within its last number": (cut(5), r"metrics\.csv: line \d+, the last one, was cut"),
        "is cut at a line end": (
            first_lines(-3),
            r"metrics\.csv: holds (\d+) rows below its first line, expected \d+; delete",
        ),
    },
    "rounds.csv": {
        "lacks a column": (text(("train_task_loss", "loss")), "no column 'train_task_loss'"),
        "has words for numbers": (text(("\n1,", "\none,")), "no numbers in column 'round'"),
        "is cut": (cut(1), r"rounds\.csv: line 2, the last one, was cut"),
        "is cut at a line end": (
            first_lines(1),
            "holds 0 rows below its first line, expected 1; delete",
        ),
    },
    "forecasts.nc": {
        "lacks an array": (hdf5(lambda f: f.pop("y_hat")), "no 'y_hat' with dimensions"),
        "is read from another file": (elsewhere("y_hat"), "refers to another file"),
    },
}

ARCHIVE = {
    "leaves its folder": (zipped({"../metr_la.h5": b"x"}), "holds|has no 'distances_la.csv'"),
    "lacks a file": (zipped({"metr_la.h5": b"x"}), "has no 'distances_la.csv'"),
}


def cases():
    tables = {
        "raw day": RAW_DAY, "grid": GRID, "metr-la.h5": METR_LA, "adjacency.npz": ADJACENCY,
        **CSV_OF_SENSORS, "fedda.h5": FEDDA, "cube to train on": CUBE, "long.csv": CSV,
        "table.parquet": PARQUET, "benchmark": BENCHMARK, "forecaster.json": FORECASTER,
        "state.safetensors": STATE, **RUN, "archive": ARCHIVE,
    }  # fmt: skip
    return [(door, damage) for door, damages in tables.items() for damage in damages], tables


CASES, TABLES = cases()

KEPT = {"raw day": ".out.nc.days", "archive": "download.zip"}
"""What stays on purpose: sums of days that could be read, and what was fetched."""


@pytest.mark.parametrize(("door", "damage"), CASES)
def test_impossible_content_is_refused(open_door, refused, tmp_path, door, damage):
    opened = open_door(door)
    change, expected = TABLES[door][damage]
    change(tmp_path / opened.path)
    message = refused(*opened.words, kept=KEPT.get(door, ""))
    if not re.search(expected, message) or not any(p in message for p in opened.path.parts):
        pytest.fail(f"expected {expected!r} in {message!r}", False)
    assert not (tmp_path / "pickle was loaded").exists()
