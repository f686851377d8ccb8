"""Sizes that a file declares or unpacks to are refused before they take any memory."""

import bz2
import errno
import gzip
import io
import tracemalloc
import zipfile
import zlib

import h5py
import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from data_prep.base import limits
from data_prep.sets.telecom_italia import cdr

pytestmark = pytest.mark.attack("absurd input")

MEGABYTE = 2**20


@pytest.fixture
def small_machine(monkeypatch):
    """A machine with 16 MB of memory."""
    monkeypatch.setattr(limits, "allowed_memory", lambda: 16 * MEGABYTE)
    monkeypatch.setattr(cdr, "MAX_BYTES", 8 * MEGABYTE)
    monkeypatch.setattr("data_prep.download.listing.MAX_UNPACKED", 8 * MEGABYTE)


def packed_zeros(path):
    path.write_bytes(gzip.compress(bytes(64 * MEGABYTE)))


def packed_rows(path):
    line = gzip.decompress(path.read_bytes()).partition(b"\n")[0] + b"\n"
    fields = line.split(b"\t")
    rows = (b"\t".join([*fields[:2], b"%d" % i, *fields[3:]]) for i in range(300_000))
    path.write_bytes(gzip.compress(b"".join(rows), 1))


def packed_table(path):
    path.write_bytes(gzip.compress(b"time,1\n" + b"2024-01-01,1\n" * 2_000_000, 1))


def packed_array(path):
    array = io.BytesIO()
    np.save(array, np.zeros((2048, 2048)))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("sensor_id.npy", b"")
        z.writestr("adjacency.npy", array.getvalue())
        with pytest.warns(UserWarning, match="Duplicate name"):
            z.writestr("sensor_id.npy", array.getvalue())


def repeated_rows(path):
    zeros = pl.repeat(0, 5_000_000, dtype=pl.Int64, eager=True)
    pl.DataFrame({"time": zeros, "cell": zeros, "v": zeros}).write_parquet(path)


def wide_file(name, shape):
    def make(path):
        with h5py.File(path, "a") as file:
            attributes = dict(file[name].attrs)
            del file[name]
            file.create_dataset(name, shape, "f8", chunks=(1,) * len(shape))
            for key in attributes.keys() & {"kind", "units"}:
                file[name].attrs[key] = attributes[key]

    return make


def big_cube(path):
    with h5py.File(path, "a") as file:
        file["sms"].resize((240, 3)) if file["sms"].maxshape[0] is None else None
    wide_file("time", (2**22,))(path)


def sparse_times(path):
    path.write_text("time,1\n2024-01-01T00:00:00,1\n2024-01-01T00:00:01,1\n2024-01-31,1\n")


def diagonal(path):
    rows = (f"{1_400_000_000 + 60 * i},{i},1\n" for i in range(5000))
    path.write_text("time,cell,v\n" + "".join(rows))


def zip_bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name in ("metr_la.h5", "distances_la.csv", "sensor_locations_la.csv"):
            z.writestr(name, bytes(4 * MEGABYTE))


def packed_pixels(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, dtype, shape in (("images", "u1", (3, 2048, 2048)), ("labels", "i8", (3,))):
            array = io.BytesIO()
            np.save(array, np.zeros(shape, dtype))
            z.writestr(f"{name}.npy", array.getvalue())


def packed_digits(path):
    path.write_bytes(bz2.compress(b"1 1:1\n" * 20_000, 1))


def packed_text(path):
    path.write_bytes(bz2.compress(bytes(16 * MEGABYTE), 1))


def packed_arrays(path):
    arrays = {"X": np.zeros((2048, 2048), np.uint8), "y": np.zeros(1)}
    savemat(path, arrays, do_compression=True)


def large_picture(path):
    Image.new("1", (2048, 2048)).save(path)


def sparse_records(path):
    with path.open("r+b") as file:
        file.truncate(12 * MEGABYTE)


def slow_array(path):
    array = io.BytesIO()
    np.save(array, np.eye(3))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as z:
        z.writestr("sensor_id.npy", array.getvalue())
        z.writestr("adjacency.npy", array.getvalue())


def inflated_chunk(path):
    with h5py.File(path, "a") as file:
        del file["sms"]
        data = file.create_dataset("sms", (4, 3), "f8", chunks=(4, 3), compression="gzip")
        packed = zlib.compress(bytes(64 * MEGABYTE), 1)
        try:
            data.id.write_direct_chunk((0, 0), packed)
        except OSError as e:  # HDF5 before 2.0
            pytest.skip(f"no such file can be made here ({e})")


def many_columns(path):
    names = "".join(f",{i}" for i in range(20_001))
    path.write_text(f"time{names}\n2024-01-01{',1' * 20_001}\n")


def empty_rows(path):
    path.write_text("time,1\n" + "\n" * 200_000)


def long_names(path):
    path.write_text("time," + "a" * 2**22 + "\n2024-01-01,1\n")


def repeated_text(path):
    texts = pl.repeat("x" * MEGABYTE, 20, eager=True)
    pl.DataFrame({"time": texts, "cell": 1, "v": 1.0}).write_parquet(path)


def large_page(path):
    text = ["x" * 10 * MEGABYTE]
    pl.DataFrame({"time": text, "cell": 1, "v": 1.0}).write_parquet(path)


def inflated_images(path):
    data = path.read_bytes()
    length = int.from_bytes(data[132:136], "little")
    inner = zlib.decompress(data[136 : 136 + length])
    packed = zlib.compress(inner + bytes(12 * MEGABYTE), 1)
    tag = b"\x0f\0\0\0" + len(packed).to_bytes(4, "little")
    path.write_bytes(data[:128] + tag + packed + data[136 + length :])


def long_benchmark(path):
    path.write_text("# comment\n" * 10_000)


def wide_results(path):
    path.write_text(",".join(f"column {i}" for i in range(10_000)) + "\n")


EXPANDING = [
    ("adjacency.npz", slow_array, "packed in a way that NumPy does not use"),
    ("fedda.h5", inflated_chunk, "a chunk of /sms is packed twice, or unpacks to more than"),
    ("wide.csv", many_columns, "20002 columns, expected at most 20000"),
    ("wide.csv", empty_rows, "100,001 lines so far are empty or notes, and 0 are rows"),
    ("wide.csv", long_names, "line 1: longer than 4,194,304 characters"),
    ("table.parquet", repeated_text, "the text of column 'time' would take 0.02097 GB"),
    ("table.parquet", large_page, "unpacked, it would take 0.01"),
    ("digits.mat", inflated_images, "train_32x32.mat: unpacked, it would take"),
    ("benchmark", long_benchmark, "has more than 65,536 bytes"),
    ("rounds.csv", wide_results, "line 1 is longer than 16384 characters"),
]
"""Files that take far more than their size, on a machine with room for them."""

CASES = [
    ("images.npz", packed_pixels, "images.npz would take 0.01258 GB", []),
    ("digits.gz", packed_zeros, "begins with", []),
    ("digits.bz2", packed_text, "unpacked, it would take", []),
    ("digits.bz2", packed_digits, "usps.bz2: unpacked, it would take 0.08288 GB", []),
    ("digits.mat", packed_arrays, "train_32x32.mat would take", []),
    ("cifar.bin", sparse_records, "train.bin would take 0.01258 GB", []),
    ("picture", large_picture, "0.png: 2048 × 2048 pixels would take 0.03355 GB", []),
    ("picture", large_picture, "at 2048 × 2048 pixels would take 0.151 GB", ["--size", "2048"]),
    ("backbone", sparse_records, "vit.safetensors would take 0.01258 GB", []),
    ("raw day.gz", packed_zeros, "line 1: found 1 tab-separated field", []),
    ("raw day.gz", packed_rows, "holds more than 0.00839 GB of rows", []),
    ("grid.gz", packed_zeros, "has more than 16,777,216 bytes", []),
    ("table.csv.gz", packed_zeros, "long.csv.gz", []),
    ("table.csv.gz", packed_table, "unpacked, it would take", []),
    ("adjacency.npz", packed_array, "metr-la-adjacency.npz would take 0.06711 GB", []),
    ("table.parquet", repeated_rows, "5000000 rows would take 0.4 GB", []),
    ("metr-la.h5", wide_file("df/block0_values", (24, 2**20)), "/df/block0_values would take", []),
    ("fedda.h5", wide_file("sms", (4, 2**20)), "/sms would take", []),
    ("fedda.h5", wide_file("idx", (2**22,)), "/idx would take", []),
    ("cube to train on", big_cube, "town.nc: time would take", []),
    ("wide.csv", sparse_times, "an axis of 2592001 time steps would take", ["--allow-gaps"]),
    ("long.csv", diagonal, "the cube would take", ["--allow-gaps", "--layout", "long"]),
    ("archive", zip_bomb, "would unpack to 12582912 bytes, more than 8388608", []),
]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        RuntimeError("Storage size calculation overflowed with sizes=[1, 1000000000, 3000000000]"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_settings_that_do_not_fit_in_memory_are_refused(open_door, refused, monkeypatch, error):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr("stforecast.forecasting.runs.run", fail)
    assert refused(*open_door("cube to train on").words).startswith("not enough memory for these")


@pytest.mark.attack("memory limit")
def test_a_limit_of_the_process_on_memory_is_named(open_door, refused, monkeypatch):
    def fail(*args, **options):
        raise MemoryError

    monkeypatch.setattr("stforecast.forecasting.runs.run", fail)
    monkeypatch.setattr("resource.getrlimit", lambda _: (2 * 10**9, 2 * 10**9))
    said = refused(*open_door("cube to train on").words)
    assert said.startswith("not enough memory: this process is limited to 2 GB (ulimit -v)")


@pytest.mark.parametrize(("door", "make", "expected"), EXPANDING)
def test_a_size_beyond_the_file_is_refused(
    open_door, refused, tmp_path, monkeypatch, door, make, expected
):
    monkeypatch.setattr(limits, "ALLOWANCE", 8 * MEGABYTE)
    opened = open_door(door)
    make(tmp_path / opened.path)
    assert expected in refused(*opened.words)


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(("door", "make", "expected", "options"), CASES)
def test_a_size_beyond_the_machine_is_refused(
    open_door, refused, tmp_path, door, make, expected, options
):
    opened = open_door(door)
    make(tmp_path / opened.path)
    tracemalloc.start()
    try:
        message = refused(*opened.words, *options, kept="download.zip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert expected in message
    assert peak < 64 * MEGABYTE
