"""Small files that declare or unpack to gigabytes: each is refused soon, in little memory.

Each command runs in a child process. Its peak is compared with that of the sound file at the same
door, so the packages that it imports do not count.
"""

import bz2
import gzip
import io
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import polars as pl
import pytest
from PIL import Image
from scipy.io import savemat

pytestmark = pytest.mark.attack("damaged files")

MEGABYTE = 2**20
LARGEST_FILE, MOST_MEMORY, MOST_SECONDS = 20 * MEGABYTE, 500 * MEGABYTE, 5.0

CHILD = """
import os, resource, sys, time
from stforecast.cli.main import main
sys.argv[0] = "stforecast"
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
start = time.process_time()
code = 0
try:
    main(["-q", *sys.argv[1:]])
except SystemExit as e:
    code = e.code or 0
print("measured", code, peak(), time.process_time() - start)
"""


def measure(words, folder):
    """Exit code, peak in bytes, seconds of the processor and error output of a command."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, words)],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = [line.split() for line in done.stdout.splitlines() if line.startswith("measured ")]
    if not found:
        pytest.fail(f"the process died with {done.returncode}: {done.stderr[-2000:]}")
    code, peak, seconds = found[-1][1:]
    return int(code), int(peak), float(seconds), done.stderr


def zeros_gz(n_bytes, head=b"", block=bytes(MEGABYTE)):
    """A gzip file of some bytes, then about so many of a block, repeated."""

    def make(path):
        member = gzip.compress(block * (2**25 // len(block) + 1))
        path.write_bytes(gzip.compress(head) + member * (n_bytes // 2**25))

    return make


def bz2_of(block, times):
    def make(path):
        path.write_bytes(bz2.compress(block * 10) * (times // 10))

    return make


def npz_of(packing=zipfile.ZIP_DEFLATED, **shapes):
    """Arrays of zeros of some types and shapes, the values written in blocks."""

    def make(path):
        with zipfile.ZipFile(path, "w", packing) as z:
            for name, (dtype, shape) in shapes.items():
                header = io.BytesIO()
                about = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(header, about)
                left = int(np.prod(shape)) * np.dtype(dtype).itemsize
                with z.open(f"{name}.npy", "w", force_zip64=True) as file:
                    file.write(header.getvalue())
                    while left:
                        part = min(left, 2**24)
                        file.write(bytes(part))
                        left -= part

    return make


def hdf5_of(*arrays, **attributes):
    """Replace arrays, given by name, type, shape and chunks, by zeros that are stored nowhere."""

    def make(path):
        with h5py.File(path, "a") as file:
            for name, dtype, shape, chunks in arrays:
                kept = dict(file[name].attrs) if name in file else {}
                if name in file:
                    del file[name]
                data = file.create_dataset(name, shape, dtype, chunks=chunks, compression="gzip")
                for key in kept.keys() & {"kind", "units"}:
                    data.attrs[key] = kept[key]
            file.attrs.update(attributes)

    return make


def wide_cube(path):
    """A million cells, whose values are stored nowhere."""
    with h5py.File(path, "a") as file:
        del file["cell"], file["sms"], file["internet"]
        file.create_dataset("cell", data=np.arange(2**20), compression="gzip")
        values = file.create_dataset("sms", (240, 2**20), "i1", chunks=(240, 2**12))
        for i, axis in enumerate(("time", "cell")):
            file[axis].make_scale(axis)
            values.dims[i].attach_scale(file[axis])


def inflated_chunk(name):
    """A chunk whose packed bytes unpack to far more than a chunk has."""

    def make(path):
        with h5py.File(path, "a") as file:
            shape, dtype = file[name].shape, file[name].dtype
            kept = {k: v for k, v in file[name].attrs.items() if k in ("kind", "units")}
            del file[name]
            data = file.create_dataset(name, shape, dtype, chunks=shape, compression="gzip")
            data.attrs.update(kept)
            packer = zlib.compressobj(9)
            packed = b"".join(packer.compress(bytes(MEGABYTE)) for _ in range(1500))
            data.id.write_direct_chunk((0,) * len(shape), packed + packer.flush())

    return make


def one_text_many_times(name):
    """Labels that are one long text, stored once."""

    def make(path):
        with h5py.File(path, "a") as file:
            del file[name]
            n = 3000
            data = file.create_dataset(name, (n,), h5py.string_dtype())
            data[0] = "x" * MEGABYTE
            file.flush()
            at = data.id.get_offset()
        raw = bytearray(path.read_bytes())
        raw[at : at + 16 * n] = raw[at : at + 16] * n
        path.write_bytes(raw)

    return make


def parquet_of(n_rows, times=1, **columns):
    """Equal rows; the texts among them are repeated."""

    def make(path):
        row = {k: v * times if isinstance(v, str) else v for k, v in columns.items()}
        frame = pl.DataFrame({k: pl.repeat(v, n_rows, eager=True) for k, v in row.items()})
        frame.write_parquet(path, row_group_size=2**22)

    return make


def parquet_list(path):
    zeros = pl.Series([0], dtype=pl.Int64).new_from_index(0, 100_000_000)
    values = pl.Series("v", [zeros])
    pl.DataFrame({"time": [0], "cell": [0]}).with_columns(values).write_parquet(path)


def wide(n, mark=b","):
    def make(path):
        header = b"time" + b"".join(mark + b"%d" % i for i in range(n))
        path.write_bytes(header + b"\n2024-01-01" + (mark + b"1") * n + b"\n")

    return make


def text_of(*parts):
    def make(path):
        path.write_bytes(b"".join(text * times for text, times in parts))

    return make


def picture(side, mode="1", kind="PNG"):
    def make(path):
        Image.new(mode, (side, side)).save(path, kind)

    return make


def frames(path):
    pages = [Image.new("1", (4000, 4000)) for _ in range(60)]
    pages[0].save(path, "TIFF", save_all=True, append_images=pages[1:], compression="group4")


def mat_of(path):
    savemat(path, {"X": np.zeros((32, 32, 3, 500_000), np.uint8), "y": np.zeros((500_000, 1))},
            do_compression=True)  # fmt: skip


def mat_that_holds_more(path):
    """The element X says that it has ten images, but unpacks to gigabytes."""
    data = path.read_bytes()
    length = int.from_bytes(data[132:136], "little")
    inner = zlib.decompress(data[136 : 136 + length])
    at = inner.index((32 * 32 * 3 * 10).to_bytes(4, "little"))
    n = 1500 * MEGABYTE
    packer = zlib.compressobj(9)
    packed = packer.compress(inner[:at] + n.to_bytes(4, "little"))
    packed += b"".join(packer.compress(bytes(MEGABYTE)) for _ in range(1500)) + packer.flush()
    tag = b"\x0f\0\0\0" + len(packed).to_bytes(4, "little")
    path.write_bytes(data[:128] + tag + packed + data[136 + length :])


def archive_of(packing, megabytes):
    def make(path):
        with zipfile.ZipFile(path, "w", packing) as z:
            for name in ("metr_la.h5", "distances_la.csv", "sensor_locations_la.csv"):
                with z.open(name, "w", force_zip64=True) as file:
                    for _ in range(megabytes):
                        file.write(bytes(MEGABYTE))

    return make


def json_of(text, times):
    """A description of nothing but a list of a text, many times."""

    def make(path):
        path.write_text(f'{{"format": 1, "more": [{",".join([text] * times)}]}}')

    return make


LINE = b"1\t1383260400000\t39\t1.5\t\t0.25\t\t10.75\n"
ROW = b"2024-01-01T00:00,1,1\n"
BOMBS = {
    "raw day.gz": {
        "zeros": zeros_gz(1500 * MEGABYTE),
        "one row": zeros_gz(1500 * MEGABYTE, LINE, LINE * 20_000),
    },
    "grid.gz": {
        "zeros": zeros_gz(1500 * MEGABYTE),
        "objects": zeros_gz(200 * MEGABYTE, b'{"features":[', b"{}," * 300_000),
    },
    "grid": {"objects": text_of((b'{"features":[', 1), (b"{},", 6_000_000), (b"{}]}", 1))},
    "metr-la.h5": {
        "values": hdf5_of(("df/block0_values", "f8", (24, 2**25), (24, 2**12))),
        "bytes": hdf5_of(("df/block0_values", "i1", (24, 2**26), (24, 2**12))),
        "a chunk": hdf5_of(("df/block0_values", "f8", (24, 2**24), (24, 2**23))),
        "labels": hdf5_of(("df/axis0", "S1", (2**27,), (2**20,)),
                          ("df/block0_values", "i1", (24, 2**27), (24, 2**20))),
        "long labels": hdf5_of(("df/axis0", f"S{2**20}", (3000,), (1,))),
        "times": hdf5_of(("df/axis1", "i8", (2**29,), (2**20,))),
        "an inflated chunk": inflated_chunk("df/block0_values"),
    },
    "fedda.h5": {
        "width": hdf5_of(("sms", "f8", (4, 2**28), (4, 2**12))),
        "cells": hdf5_of(("cell", "i1", (2**29,), (2**20,))),
        "lng": hdf5_of(("lng", "f8", (2**29,), (2**20,))),
        "all services": hdf5_of(*((n, "f8", (4, 2**26), (4, 2**20)) for n in ("sms", "call"))),
        "an inflated chunk": inflated_chunk("sms"),
    },
    "cube to train on": {
        "times": hdf5_of(("time", "i8", (2**28,), (2**20,))),
        "small cells": hdf5_of(("cell", "i1", (2**28,), (2**20,))),
        "values": wide_cube,
        "an inflated chunk": inflated_chunk("sms"),
        "one cell": one_text_many_times("cell"),
    },
    "cube to export": {"an inflated chunk": inflated_chunk("sms")},
    "cube to forecast from": {"times": hdf5_of(("time", "i8", (2**28,), (2**20,)))},
    "forecasts.nc": {"times": hdf5_of(("time", "i8", (2**28,), (2**20,)))},
    "adjacency.npz": {
        "matrix": npz_of(sensor_id=("i8", (10_000,)), adjacency=("f8", (10_000, 10_000))),
        "other shape": npz_of(sensor_id=("i8", (3,)), adjacency=("f8", (10_000, 10_000))),
        "ids": npz_of(sensor_id=("S1", (2**30,)), adjacency=("f8", (3, 3))),
        "slow": npz_of(zipfile.ZIP_LZMA, sensor_id=("i8", (3,)), adjacency=("f8", (5000, 5000))),
    },
    "distances.csv": {"columns": wide(1_000_000), "one line": text_of((b"a", 19_000_000))},
    "locations.csv": {"columns": wide(1_000_000)},
    "wide.csv": {
        "columns": wide(1_000_000),
        "tabs": wide(1_000_000, b"\t"),
        "quotes": text_of((b'time,"', 1), (b'a","', 4_000_000)),
        "commas": text_of((b",", 19_000_000)),
        "empty rows": text_of((b"time", 1), (b",a%d" % 7, 1), (b"\n", 19_000_000)),
        "one line": text_of((b"time,1\n2024-01-01,", 1), (b"1", 19_000_000)),
    },
    "long.csv": {"one row": text_of((b"time,cell,v\n", 1), (ROW, 900_000))},
    "table.csv.gz": {
        "zeros": zeros_gz(1500 * MEGABYTE),
        "one row": zeros_gz(1000 * MEGABYTE, b"time,cell,v\n", ROW * 50_000),
        "commas": zeros_gz(1000 * MEGABYTE, b"time,cell,v\n", b"," * MEGABYTE),
        "short rows": zeros_gz(500 * MEGABYTE, b"time,cell\n", b",\n" * MEGABYTE),
    },
    "table.parquet": {
        "rows": parquet_of(50_000_000, time=0, cell=0, v=0),
        "text": parquet_of(2_000_000, time="2024-01-01T00:00:00", cell=1, v=1.0),
        "long text": parquet_of(2000, 2 * MEGABYTE, time="x", cell=1, v=1.0),
        "a page": parquet_of(1, 700 * MEGABYTE, time="x", cell=1, v=1.0),
        "a list": parquet_list,
    },
    "benchmark": {"keys": text_of((b"a=1\n", 1), (b"[[a.b]]\n", 2_000_000))},
    "images.toml": {"list": text_of((b"a=[", 1), (b"1,", 5_000_000), (b"]", 1))},
    "forecaster.json": {"list": json_of("{}", 5_000_000)},
    "run.json": {"list": json_of("{}", 5_000_000)},
    "settings.json": {"list": json_of("{}", 5_000_000)},
    "metrics.csv": {"columns": wide(1_000_000)},
    "rounds.csv": {"columns": wide(1_000_000)},
    "partition.csv": {"columns": wide(1_000_000)},
    "archive": {
        "zeros": archive_of(zipfile.ZIP_DEFLATED, 300),
        "slow": archive_of(zipfile.ZIP_LZMA, 100),
    },
    "picture": {
        "89 million pixels": picture(9400),
        "60 million pixels": picture(7700, "RGB"),
        "16 million pixels": picture(4000),
        "webp": picture(8000, "RGB", "WEBP"),
        "gif": picture(9000, "P", "GIF"),
        "frames": frames,
    },
    "images.npz": {
        "pixels": npz_of(images=("u1", (250, 2000, 2000)), labels=("i8", (250,))),
        "labels": npz_of(images=("u1", (3, 8, 8)), labels=("i1", (2**30,))),
        "dots": npz_of(images=("u1", (2**27, 1, 1)), labels=("i1", (2**27,))),
        "names": npz_of(
            images=("u1", (3, 8, 8)), labels=("i1", (3,)), class_names=("U1", (2**27,))
        ),
        "slow": npz_of(zipfile.ZIP_BZIP2, images=("u1", (200, 1000, 1000)), labels=("i8", (200,))),
    },
    "digits.gz": {
        "zeros": zeros_gz(1500 * MEGABYTE),
        "images": zeros_gz(1500 * MEGABYTE, b"\0\0\x08\x03\0\1\0\0\0\0\1\0\0\0\1\0"),
        "more": zeros_gz(1500 * MEGABYTE, b"\0\0\x08\x03\0\0\0\x0a\0\0\0\x08\0\0\0\x08"),
    },
    "digits.bz2": {
        "zeros": bz2_of(bytes(MEGABYTE), 3000),
        "lines": bz2_of(b"1 1:1\n" * 100_000, 1000),
        "one line": bz2_of(b" 1:1" * 200_000, 1000),
    },
    "digits.mat": {"images": mat_of, "more": mat_that_holds_more},
    "class names": {"words": text_of((b"ab ", 6_000_000))},
    "wnids.txt": {"words": text_of((b"ab\n", 6_000_000))},
    "annotations": {"lines": text_of((b"ab\n", 6_000_000))},
    "state of a baseline": {
        "header": lambda path: path.write_bytes(
            (18 * MEGABYTE).to_bytes(8, "little") + b"{" + b" " * (18 * MEGABYTE - 2) + b"}"
        ),
    },
}  # fmt: skip
"""Bombs at each door, by what is too large in them."""

CASES = [(door, what) for door, bombs in BOMBS.items() for what in bombs]
usual: dict[str, tuple[int, float]] = {}
"""Peak in bytes and seconds of the processor with a valid file at each door."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(("door", "what"), CASES)
def test_a_small_file_is_refused_soon_in_little_memory(
    open_door, tmp_path, record_property, door, what
):
    opened = open_door(door)
    if door not in usual:
        code, peak, seconds, said = measure(opened.words, tmp_path)
        assert code == 0, said
        usual[door] = peak, seconds
        for path in tmp_path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        open_door(door)
    BOMBS[door][what](tmp_path / opened.path)
    assert (tmp_path / opened.path).stat().st_size < LARGEST_FILE, "the bomb is no small file"
    code, peak, seconds, said = measure(opened.words, tmp_path)
    more = peak - usual[door][0], seconds - usual[door][1]  # Imports take seconds of their own.
    record_property("measured", f"{more[0]} bytes, {more[1]} s: {said}")
    assert code == 2, said
    assert more[0] < MOST_MEMORY, said
    assert more[1] < MOST_SECONDS, said
