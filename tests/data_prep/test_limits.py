"""The memory that a process may take, on machines and in containers made of files."""

import gzip
import json
import zipfile
from types import SimpleNamespace

import pytest
from mentions import mentions

from data_prep.base import limits
from data_prep.base.errors import InputError
from data_prep.base.limits import (
    ALLOWANCE,
    CHUNK,
    EXPANSION,
    allowed_memory,
    check_expansion,
    check_size,
    read_expanded,
)
from data_prep.readers import open as opening
from data_prep.readers.decode import read_table
from data_prep.readers.formats import Part
from data_prep.readers.formats import json as json_format
from data_prep.readers.options import TableOptions

GB = 2**30
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 30 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "32 30 0:30 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes a machine's memory, and its `/proc` and `/sys/fs/cgroup` as paths and contents."""

    def make(files, free=20 * GB):
        said = SimpleNamespace(available=free)
        monkeypatch.setattr(limits.psutil, "virtual_memory", lambda: said)
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return make


def group(folder, most, used, cached=0):
    """Files of a group of version 2."""
    stat = f"anon 5\ninactive_file {cached}\n"
    names = {"memory.max": most, "memory.current": used, "memory.stat": stat}
    return {f"sys/fs/cgroup{folder}/{name}": f"{text}\n" for name, text in names.items()}


def group_1(folder, most, used, cached=0):
    """Files of a group of version 1."""
    stat = f"inactive_file 7\ntotal_inactive_file {cached}\n"
    names = {"limit_in_bytes": most, "usage_in_bytes": used, "stat": stat}
    return {f"sys/fs/cgroup/memory{folder}/memory.{n}": f"{text}\n" for n, text in names.items()}


def test_without_groups_what_is_free_counts(machine):
    assert allowed_memory(machine({}, free=3 * GB)) == 3 * GB


def test_a_system_that_says_nothing_has_some_memory(tmp_path, monkeypatch):
    def unknown():
        raise FileNotFoundError("/proc/meminfo")

    assert 0 < allowed_memory(tmp_path) < 2**50
    monkeypatch.setattr(limits.psutil, "virtual_memory", unknown)
    assert allowed_memory(tmp_path) == limits.UNKNOWN


def test_a_group_of_version_2_leaves_its_limit_less_its_use(machine):
    there = {"proc/self/cgroup": "0::/job\n", "proc/self/mountinfo": V2}
    assert allowed_memory(machine(there | group("/job", 4 * GB, GB, cached=GB // 2))) == 3.5 * GB


def test_a_group_above_may_leave_less(machine):
    there = {"proc/self/cgroup": "0::/slice/job/step\n", "proc/self/mountinfo": V2}
    there |= group("/slice/job/step", "max", GB) | group("/slice/job", 8 * GB, GB)
    assert allowed_memory(machine(there | group("/slice", 6 * GB, 4 * GB))) == 2 * GB


def test_a_container_sees_only_its_own_group(machine):
    """Its path is said as the host knows it, or as lying outside of the namespace."""
    for path in ("/", "/../../outside", "/docker/abc"):
        mounted = V2.replace(" / /sys", " /docker/abc /sys") if "docker" in path else V2
        there = {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": mounted}
        assert allowed_memory(machine(there | group("", 2 * GB, GB))) == GB


def test_a_group_of_version_1(machine):
    there = {
        "proc/self/cgroup": "4:memory:/box/job\n3:cpu,cpuacct:/\n0::/\n",
        "proc/self/mountinfo": V1.format(top="/"),
    }
    there |= group_1("/box", 5 * GB, 3 * GB, cached=GB)
    assert allowed_memory(machine(there | group_1("/box/job", 2**63 - 4096, GB))) == 3 * GB


def test_a_container_of_version_1_sees_only_its_own_group(machine):
    there = {
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "proc/self/mountinfo": V1.format(top="/docker/abc"),
    }
    assert allowed_memory(machine(there | group_1("", 2 * GB, GB // 2))) == 1.5 * GB


def test_an_exhausted_group_leaves_nothing(machine):
    there = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2}
    assert allowed_memory(machine(there | group("", GB, 2 * GB))) == 0


def test_half_of_what_is_free_may_be_taken(monkeypatch):
    monkeypatch.setattr(limits, "allowed_memory", lambda: 2 * 3 * CHUNK)
    check_size(3 * CHUNK, "it")
    with pytest.raises(InputError, match="free memory"):
        check_size(3 * CHUNK + 1, "it")


def test_a_megabyte_may_be_taken_without_asking_how_much_is_free(monkeypatch):
    monkeypatch.setattr(limits, "allowed_memory", lambda: 0)
    check_size(CHUNK, "it")
    with pytest.raises(InputError, match="free memory"):
        check_size(CHUNK + 1, "it")


def test_a_sound_file_may_grow_and_a_bomb_may_not(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(bytes(1000))
    monkeypatch.setattr(limits, "allowed_memory", lambda: 2**40)
    largest = ALLOWANCE + 1000 * EXPANSION
    check_expansion(largest, path)
    with pytest.raises(InputError, match=r"a would .* STFORECAST_EXPANSION to 134"):
        check_expansion(largest + 1, path)
    monkeypatch.setenv("STFORECAST_EXPANSION", "1000")
    check_expansion(largest + 1, path)
    monkeypatch.setattr(limits, "allowed_memory", lambda: 2**20)
    with pytest.raises(InputError, match="free memory"):
        check_expansion(largest + 1, path)
    monkeypatch.setenv("STFORECAST_EXPANSION", "much")
    with pytest.raises(InputError, match="STFORECAST_EXPANSION is 'much'"):
        check_expansion(1, path)


def test_a_packed_file_is_unpacked_only_as_far_as_it_may(tmp_path, monkeypatch):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(3 * limits.CHUNK)))
    with gzip.open(path) as packed:
        assert read_expanded(packed, path) == bytes(3 * limits.CHUNK)
    monkeypatch.setattr(limits, "ALLOWANCE", limits.CHUNK)
    with (
        gzip.open(path) as packed,
        pytest.raises(InputError, match=r"unpacked, .* 0\.002097 GB"),
    ):
        read_expanded(packed, path)


def test_a_line_of_a_table_longer_than_any_row_is_refused(tmp_path):
    path = tmp_path / "long.csv"
    path.write_bytes(b"time,value\n2024-01-01," + b"1" * 2**24 + b"\n")
    with pytest.raises(InputError, match=r"long\.csv: .* longer than"):
        read_table(path)


def test_the_number_of_files_of_an_export_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "MOST_FILES", 2)
    (tmp_path / "all").mkdir()
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed:
        for name in "abc":
            (tmp_path / "all" / f"{name}.csv").write_text("time,value\n2024-01-01,1\n")
            packed.write(tmp_path / "all" / f"{name}.csv", f"{name}.csv")
    for path in (tmp_path / "all", tmp_path / "all.zip"):
        with pytest.raises(InputError, match=r"3 tables, .* 2"):
            opening.apply(path, TableOptions())


def test_the_files_of_a_zip_are_bounded_together(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "ALLOWANCE", 2**20)
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in "abcd":
            packed.writestr(f"{name}.csv", b"0" * (2**19 + 2**18))
    with pytest.raises(InputError, match="unpacked, it"):
        opening.apply(tmp_path / "all.zip", TableOptions())


def read_json(path):
    return json_format.Json.read(Part(path.name, path), TableOptions(), ()).columns


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_of_objects_is_read_in_parts_as_in_one(tmp_path, monkeypatch, indent):
    texts = ["}, {", 'a"}, {"', "é]", "plain", None]
    rows = [{"n": i, "place": {"name": texts[i % 5], "at": {"x": i / 2}}} for i in range(40)]
    rows[9] = {"n": 0.5, "late": "yes"}
    for row in rows[20:30]:
        row["place"] = None
    path = tmp_path / "list.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")
    whole = read_json(path)
    monkeypatch.setattr(json_format, "PIECE", 100)
    with path.open("rb") as file:
        assert len([*json_format._parts_of_list(file)]) > 9
    parts = read_json(path)
    assert parts.select(whole.columns).equals(whole)
    assert set(parts.columns) == set(whole.columns)


def test_lists_are_left_out_and_one_that_ends_early_is_refused(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(json_format, "PIECE", 20)
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"n": 1, "deep": [{"a": 1}, {"a": 2}]}] * 9))
    assert read_json(path).columns == ["n"]
    assert mentions(caplog.text, "lists", "queue: deep")
    path.write_text(json.dumps([{"n": 1}] * 9)[:-9])
    with pytest.raises(InputError, match=r"list\.json"):
        read_table(path)
