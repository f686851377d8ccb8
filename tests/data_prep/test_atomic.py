"""Writing a file whole or not at all: full disks, killed writers, two writers at once."""

import copy
import errno
import io
import multiprocessing
import os
import random
import resource
import signal

import h5py
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from data_prep.base.errors import InputError
from data_prep.base.files import WriteError, atomic_path, check_target, file_lock
from data_prep.cube import make_cube, open_cube, write_chunks, write_cube
from data_prep.netcdf import hdf5_target
from data_prep.sets.fedda_h5 import write as write_fedda

FULL = r"(No space left on device|File too large)"

# Forked children write a file and end: they need no lock that a thread of pytest might hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture
def cube():
    """Some 100 kB that deflate cannot make smaller."""
    values = np.random.default_rng(1).random((2000, 6))
    time = pd.date_range("2024-01-01", periods=2000, freq="h")
    return make_cube({"net": values}, time, np.arange(1, 7), title="", source="", license="",
                     units="1")  # fmt: skip


@pytest.fixture
def small_disk():
    """A function that lets files grow to so many bytes and no more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_in_slabs(cube, path):
    write_chunks(cube, [(0, {"net": cube["net"].to_numpy()})], path, steps_per_chunk=100)


def write_text(cube, path):
    with atomic_path(path) as part:
        cube["net"].to_pandas().to_csv(part)


def write_tensors(cube, path):
    with atomic_path(path) as part:
        save_file({"net": cube["net"].to_numpy()}, part)


WRITERS = [write_cube, write_in_slabs, write_fedda, write_text, write_tensors]


def test_a_lock_on_a_full_disk_has_its_path(tmp_path, small_disk):
    small_disk(0)
    with pytest.raises(WriteError, match=rf"a.lock.* \({FULL}\)"):
        file_lock(tmp_path / "a.lock", tmp_path).__enter__()


@pytest.mark.parametrize("room", [0, 3000, 20_000, 60_000])
@pytest.mark.parametrize("write", WRITERS)
def test_a_full_disk_is_told_with_the_name_of_the_file(
    cube, tmp_path, small_disk, capfd, write, room
):
    (tmp_path / "out").write_text("old")
    small_disk(room)
    with pytest.raises(WriteError, match=rf"out: .* \({FULL}\); free") as e:
        write(cube, tmp_path / "out")
    assert isinstance(e.value, InputError)
    assert e.value.filename == str(tmp_path / "out")
    small_disk(2**20)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "old"
    assert capfd.readouterr().err.replace("out: without lng", "") == "" or write is write_fedda


def test_another_process_can_report_it(tmp_path):
    error = WriteError(tmp_path / "out", OSError(errno.ENOSPC, "No space left on device"))
    received = copy.copy(error)  # made as by pickling
    assert isinstance(received, WriteError)
    assert (str(received), received.errno) == (str(error), errno.ENOSPC)


def test_a_process_that_met_a_full_disk_ends_as_others_do(cube, tmp_path):
    """HDF5 crashes at the end of a process that could not write a file."""

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        with pytest.raises(WriteError):
            write_cube(cube, tmp_path / "cube.nc")

    process = multiprocessing.get_context("fork").Process(target=fill)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_what_is_written_through_the_held_back_file_is_the_same(cube, tmp_path):
    for write, name in ((write_cube, "a.nc"), (write_in_slabs, "b.nc")):
        write(cube, tmp_path / name)
        with open_cube(tmp_path / name) as ds:
            assert ds.load().identical(cube)
    with h5py.File(write_fedda(cube, tmp_path / "c.h5")) as file:
        np.testing.assert_array_equal(file["net"][:], cube["net"].to_numpy())


def test_bytes_after_a_failed_write_are_read_back(tmp_path, small_disk):
    def write_and_read():
        draw, whole = random.Random(1), io.BytesIO()
        with hdf5_target(tmp_path / "a") as file:
            for _ in range(400):
                at, data = draw.randrange(60_000), draw.randbytes(draw.randrange(1, 9000))
                for each in (whole, file):
                    each.seek(at)
                    assert each.write(data) == len(data)
                size = whole.seek(0, io.SEEK_END)
                assert file.seek(0, io.SEEK_END) == size
                at, read = draw.randrange(size), bytearray(draw.randrange(1, 9000))
                file.seek(at)
                file.readinto(read)
                assert read == whole.getvalue()[at : at + len(read)].ljust(len(read), b"\0")

    small_disk(20_000)
    with pytest.raises(OSError, match=FULL):
        write_and_read()


def test_a_file_of_blocks_ends_at_the_first_that_finds_no_room(tmp_path, small_disk):
    begun = []

    def blocks():
        for first in range(0, 2000, 100):
            begun.append(first)
            yield first, {"net": values[first : first + 100]}

    values = np.random.default_rng(1).random((2000, 1500))  # Several times the cache of HDF5.
    time = pd.date_range("2024-01-01", periods=2000, freq="h")
    cube = make_cube({"net": values}, time, np.arange(1500), title="", source="", license="",
                     units="1")  # fmt: skip
    small_disk(20_000)
    with pytest.raises(WriteError, match=FULL):
        write_chunks(cube, blocks(), tmp_path / "a.nc", steps_per_chunk=100)
    assert len(begun) < 20


def test_another_file_at_fault_keeps_its_name(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match="elsewhere"),
        atomic_path(tmp_path / "out"),
        (tmp_path / "elsewhere").open(),
    ):
        pass


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "cube.nc"
    path.write_text("old")

    def fail():
        with atomic_path(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["cube.nc"]
    assert path.read_text() == "old"


def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        check_target(tmp_path)
    with pytest.raises(InputError, match=r"full: .*device"):
        check_target(tmp_path / "/dev/full")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file: .*created \("):
        check_target(tmp_path / "file" / "cube.nc")
    check_target(tmp_path / "new" / "cube.nc")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "new"]


def test_a_new_file_takes_the_place_of_the_old_at_once(tmp_path):
    path = tmp_path / "cube.nc"
    path.write_text("old")
    with path.open() as reader:
        with atomic_path(path) as part:
            part.write_text("new")
            assert path.read_text() == "old"
        assert reader.read() == "old"
    assert path.read_text() == "new"


def begin(path, connection):
    """Begin to write, say so, and end if told."""
    with atomic_path(path) as part:
        part.write_text("half")
        connection.send("begun")
        connection.recv()


@pytest.fixture
def writer(tmp_path):
    """Another process in the middle of writing `out`, and the connection to it."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=begin, args=(tmp_path / "out", there))
    process.start()
    assert here.recv() == "begun"
    yield process, here
    process.kill()
    process.join()


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path, writer):
    process, _ = writer
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [p.name[:5] for p in tmp_path.iterdir()] == [".out."]
    with atomic_path(tmp_path / "out") as part:
        part.write_text("new")
        (tmp_path / "other.x.part").mkdir()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.x.part", "out"]


def test_a_living_writer_is_left_alone(tmp_path, writer):
    process, connection = writer
    with atomic_path(tmp_path / "out") as part:
        part.write_text("mine")
    assert (tmp_path / "out").read_text() == "mine"
    connection.send("end")
    process.join()
    assert process.exitcode == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "half"


@pytest.mark.repeats
def test_many_writers_at_once_leave_one_whole_file(tmp_path):
    def write(number):
        for _ in range(20):
            with atomic_path(tmp_path / "out") as part:
                part.write_text(str(number) * 1000)

    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(n,)) for n in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0] * 4
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert len(set((tmp_path / "out").read_text())) == 1
