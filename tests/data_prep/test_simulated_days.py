"""Simulated days stay known as such: beside the days, in the cube and in what is exported."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from data_prep.base.errors import InputError
from data_prep.city.simulate import simulate
from data_prep.cube import open_cube
from data_prep.sets import fedda_h5, milan, trentino

SOURCE = (
    "simulated by stforecast simulate (preset heterogeneous, city milan, 4 cells, "
    f"2 days from 2013-11-01, seed 7, version {version('stforecast')})"
)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    simulate(tmp_path / "raw", cells=4, days=2, seed=7)
    return tmp_path / "raw"


def attributes(cube: Path) -> dict[str, str]:
    with open_cube(cube) as ds:
        return dict(ds.attrs)


def test_the_marker_tells_how_to_simulate_the_days_again(raw: Path, tmp_path: Path) -> None:
    marker = json.loads((raw / "SIMULATED.json").read_text())
    assert marker["note"].startswith("Invented by `stforecast simulate`")
    assert marker["version"] == version("stforecast")
    assert list(marker["kinds"]) == ["4959", "4960", "5059", "5060"]
    arguments = {k: marker[k] for k in ("city", "preset", "cells", "days", "seed", "start")}
    for path in simulate(tmp_path / "again", **arguments):
        assert path.read_bytes() == (raw / path.name).read_bytes()


def test_a_stuck_counter_repeats_its_first_value_on_the_last_day_alone(tmp_path: Path) -> None:
    simulate(tmp_path / "raw", cells=4, days=2, seed=7)
    right = milan.prepare(tmp_path / "raw", tmp_path / "right.nc")
    simulate(tmp_path / "odd", cells=4, days=2, seed=7, stuck=4960)
    stuck = milan.prepare(tmp_path / "odd", tmp_path / "stuck.nc")
    with open_cube(right) as one, open_cube(stuck) as other:
        as_it_is, found = (ds["internet"].to_numpy() for ds in (one, other))
        assert "cell 4960 stuck on the last day" in other.attrs["source"]
    assert len(set(found[24:, 1])) == 1
    assert (found[:24] == as_it_is[:24]).all()
    assert (found[:, [0, 2, 3]] == as_it_is[:, [0, 2, 3]]).all()
    with pytest.raises(InputError, match=r"stuck is 5; .* 4959"):
        simulate(tmp_path / "none", cells=4, days=2, stuck=5)


def test_the_cube_of_simulated_days_says_so(raw: Path, tmp_path: Path) -> None:
    attrs = attributes(milan.prepare(raw, tmp_path / "o.nc"))
    assert attrs["source"] == SOURCE
    assert attrs["title"] == "Simulated telecommunication activity in the layout of milan"
    assert attrs["license"] == "none, the records are invented"


def test_a_single_simulated_day_says_so(raw: Path, tmp_path: Path) -> None:
    day = raw / "sms-call-internet-mi-2013-11-02.txt"
    assert attributes(milan.prepare(day, tmp_path / "o.nc"))["source"] == SOURCE


def test_the_cube_of_real_days_bears_their_doi(traffic_dir: Path, tmp_path: Path) -> None:
    day = traffic_dir / "milan-25cells-raw" / "sms-call-internet-mi-2013-11-01.txt"
    attrs = attributes(milan.prepare(day, tmp_path / "o.nc"))
    assert attrs["source"] == "doi:10.7910/DVN/EGZHFV"
    assert attrs["license"] == "ODbL-1.0"


@pytest.mark.repeats
def test_what_is_exported_keeps_its_origin(raw: Path, tmp_path: Path) -> None:
    with open_cube(milan.prepare(raw, tmp_path / "o.nc")) as ds:
        exported = fedda_h5.write(ds, tmp_path / "milano.h5")
    attrs = attributes(fedda_h5.prepare(exported, tmp_path / "back.nc"))
    assert attrs["source"] == SOURCE
    assert attrs["license"] == "none, the records are invented"


def test_real_and_simulated_days_are_not_mixed(raw: Path, tmp_path: Path) -> None:
    day = raw / "sms-call-internet-mi-2013-11-02.txt"
    day.with_name("sms-call-internet-mi-2013-11-03.txt").write_bytes(day.read_bytes())
    day.with_name("sms-call-internet-tn-2013-11-01.txt").write_bytes(day.read_bytes())
    for data_set, date in ((milan, "milan 2013-11-03"), (trentino, "trentino 2013-11-01")):
        message = rf"SIMULATED\.json: says that milan .* the folder also holds {date}; keep"
        with pytest.raises(InputError, match=message):
            data_set.prepare(raw, tmp_path / "o.nc")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{", ""),
        ('"note"', '"remark"'),
        ('"seed"', '"seeds"'),
        ('"days": 2', '"days": "2"'),
        ('"days": 2', '"days": 0'),
        ("2013-11-01", "November"),
    ],
)
def test_a_damaged_marker_is_refused(raw: Path, tmp_path: Path, before: str, after: str) -> None:
    text = (raw / "SIMULATED.json").read_text()
    assert before in text
    (raw / "SIMULATED.json").write_text(text.replace(before, after, 1))
    with pytest.raises(InputError, match=r"SIMULATED\.json: .* `stforecast simulate`"):
        milan.prepare(raw, tmp_path / "o.nc")


def test_a_killed_simulation_has_its_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("data_prep.city.simulate.write_day", killed)
    with pytest.raises(KeyboardInterrupt):
        simulate(tmp_path, cells=1, days=1)
    assert (tmp_path / "SIMULATED.json").is_file()
