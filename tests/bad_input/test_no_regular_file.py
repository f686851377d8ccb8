"""What bears a file's name and is no file: refused by name, never skipped nor waited for."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from data_prep.base.errors import InputError, no_file
from data_prep.download import File
from data_prep.download.fetch import download
from data_prep.sets import milan
from data_prep.sets.dcrnn import MetrLA
from vision.datasets import load

pytestmark = pytest.mark.attack("damaged files")

KINDS = {
    "a link to nowhere, which is not there": lambda path: path.symlink_to("nowhere"),
    "a folder": lambda path: path.mkdir(),
    "a named pipe": os.mkfifo,
}


@pytest.fixture(params=KINDS)
def put(request):
    """Put what is no file in the place of a file; gives the pattern of the error."""

    def put(path):
        path.unlink(missing_ok=True)
        KINDS[request.param](path)
        return rf"{path.name}: no .* here \(found {request.param}\); "

    return put


@pytest.fixture
def days(tmp_path, sound):
    """Four raw days, of which only the names matter."""
    folder = tmp_path / "raw"
    folder.mkdir()
    source = sound / "sms-call-internet-mi-2013-11-01.txt"
    for day in range(1, 5):
        shutil.copy(source, folder / f"sms-call-internet-mi-2013-11-0{day}.txt")
    return folder


@pytest.mark.parametrize("day", [1, 2, 4])
def test_a_raw_day_at_the_start_in_the_middle_or_at_the_end(days, tmp_path, put, day):
    refusal = put(days / f"sms-call-internet-mi-2013-11-0{day}.txt")
    with pytest.raises(InputError, match=refusal):
        milan.prepare(days, tmp_path / "cube.nc", allow_gaps=True)


def test_a_raw_day_given_alone(tmp_path):
    os.mkfifo(tmp_path / "sms-call-internet-mi-2013-11-01.txt")
    with pytest.raises(InputError, match="named pipe"):
        milan.prepare(tmp_path / "sms-call-internet-mi-2013-11-01.txt", tmp_path / "cube.nc")


def test_a_link_to_a_raw_day_is_one(sound, tmp_path):
    (tmp_path / "sms-call-internet-mi-2013-11-01.txt").symlink_to(
        sound / "sms-call-internet-mi-2013-11-01.txt"
    )
    milan.prepare(tmp_path, tmp_path / "cube.nc")


def test_the_mark_of_simulated_days(days, tmp_path, put):
    refusal = put(days / "SIMULATED.json")
    with pytest.raises(InputError, match=refusal):
        milan.prepare(days, tmp_path / "cube.nc")


@pytest.mark.parametrize(
    "name", ["metr-la.h5", "metr-la-adjacency.npz", "graph_sensor_locations.csv"]
)
def test_the_files_of_metr_la(sound, tmp_path, put, name):
    shutil.copy(sound / "metr-la.h5", tmp_path)
    refusal = put(tmp_path / name)
    with pytest.raises(InputError, match=refusal):
        MetrLA.prepare(tmp_path, tmp_path / "cube.nc")


@pytest.mark.parametrize("name", ["day.txt", "day.txt.part"])
def test_what_is_to_be_downloaded(tmp_path, put, name):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "day.txt").write_text("1")
    (tmp_path / "out").mkdir()
    refusal = put(tmp_path / "out" / name)
    with pytest.raises(InputError, match=refusal):
        download((File("https://h/day.txt", "day.txt"),), tmp_path / "out",
                 source=str(tmp_path / "mirror"))  # fmt: skip


@pytest.fixture
def pictures(tmp_path):
    """Two classes of two images."""
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    return tmp_path / "pictures"


@pytest.mark.parametrize("name", ["cat/1.png", "cat/3.png", "dog/2.png"])
def test_an_image(pictures, put, name):
    refusal = put(pictures / name)
    with pytest.raises(InputError, match=refusal):
        load("folder", pictures)


def test_a_class_that_is_a_dangling_link(pictures):
    (pictures / "ant").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"ant: .*\(found a link"):
        load("folder", pictures)


@pytest.mark.parametrize("name", ["pacs.npz", "train-images-idx3-ubyte"])
def test_a_data_set_of_one_file(tmp_path, name):
    (tmp_path / name).symlink_to("nowhere")
    with pytest.raises(InputError, match=rf"{name}: .*\(found a link"):
        load({"pacs.npz": "pacs"}.get(name, "mnist"), tmp_path)


def test_a_device_is_no_file_either():
    assert "(found a device or socket)" in str(no_file(Path(os.devnull), "table", "give one"))
