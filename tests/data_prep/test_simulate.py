"""The invented city: the published layout, lifelike traffic, equal bytes for equal arguments."""

import gzip
import json
import re
from collections import Counter
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.city import simulate as raw_day
from data_prep.city.activity import KINDS, PRESETS, simulated_days
from data_prep.city.simulate import CITIES, block, simulate, zones

ROME = ZoneInfo("Europe/Rome")
MILAN = PRESETS["heterogeneous"]
SERVICES = ("sms_in", "sms_out", "call_in", "call_out", "internet")


def rows_of(path: Path) -> list[list[str]]:
    """The fields of a raw file, read without any of the package's tools."""
    return [line.split("\t") for line in path.read_text().splitlines()]


def kinds_of(folder: Path) -> dict[int, str]:
    kinds = json.loads((folder / "SIMULATED.json").read_text())["kinds"]
    return {int(cell): kind for cell, kind in kinds.items()}


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("city")
    simulate(out, cells=40, days=14, seed=3)
    return out


@pytest.fixture(scope="module")
def rows(city: Path) -> list[list[str]]:
    return rows_of(city / "sms-call-internet-mi-2013-11-05.txt")


@pytest.fixture(scope="module")
def internet(city: Path) -> dict[str, np.ndarray]:
    """Mean Internet activity of each kind of cell, summed over countries, `(day, hour)`."""
    sums: Counter[tuple[str, int, int]] = Counter()
    kinds = kinds_of(city)
    for day, path in enumerate(sorted(city.glob("sms-*.txt"))):
        for cell, ms, *_, value in rows_of(path):
            hour = datetime.fromtimestamp(int(ms) / 1000, ROME).hour
            sums[kinds[int(cell)], day, hour] += float(value or 0)
    count = Counter(kinds.values())
    return {
        kind: np.array([[sums[kind, d, h] for h in range(24)] for d in range(14)]) / count[kind]
        for kind in count
    }


def test_files_are_named_and_returned_by_day(city: Path, tmp_path: Path) -> None:
    paths = simulate(tmp_path, cells=4, days=3, start="2013-12-31")
    assert [p.name for p in paths] == [
        "sms-call-internet-mi-2013-12-31.txt",
        "sms-call-internet-mi-2014-01-01.txt",
        "sms-call-internet-mi-2014-01-02.txt",
    ]
    assert len(list(city.iterdir())) == 14 + 2


def test_eight_tab_separated_fields_and_no_header(city: Path, rows: list[list[str]]) -> None:
    assert {len(r) for r in rows} == {8}
    assert all(re.fullmatch(r"\d+", field) for r in rows for field in r[:3])
    assert all(re.fullmatch(r"|\d+\.\d+", field) for r in rows for field in r[3:])
    assert (city / "sms-call-internet-mi-2013-11-05.txt").read_bytes().endswith(b"\n")


def test_144_intervals_of_the_local_day_for_every_cell(city: Path, rows: list[list[str]]) -> None:
    first = int(datetime(2013, 11, 5, tzinfo=ROME).timestamp() * 1000)
    expected = {first + i * 600_000 for i in range(144)}
    seen: dict[str, set[int]] = {}
    for cell, ms, *_ in rows:
        seen.setdefault(cell, set()).add(int(ms))
    assert len(seen) == 40
    assert all(times == expected for times in seen.values())


def test_first_interval_is_the_published_one(city: Path) -> None:
    assert rows_of(city / "sms-call-internet-mi-2013-11-01.txt")[0][1] == "1383260400000"


@pytest.mark.parametrize(("day", "intervals"), [("2013-10-27", 150), ("2014-03-30", 138)])
def test_days_of_a_clock_change(tmp_path: Path, day: str, intervals: int) -> None:
    (path,) = simulate(tmp_path, cells=1, days=1, start=day)
    times = sorted({int(r[1]) for r in rows_of(path)})
    midnight = datetime.fromisoformat(day).replace(tzinfo=ROME)
    assert times[0] == midnight.timestamp() * 1000
    assert len(times) == intervals
    assert set(np.diff(times)) == {600_000}


def test_one_row_for_each_cell_interval_and_country_in_order(rows: list[list[str]]) -> None:
    keys = [tuple(map(int, r[:3])) for r in rows]
    assert keys == sorted(set(keys))


def test_italy_leads_and_visitors_are_few(rows: list[list[str]]) -> None:
    count = Counter(int(r[2]) for r in rows)
    assert count[39] == 40 * 144
    assert {0, 33, 44, 49} < set(count)
    assert all(0 < n < 0.7 * count[39] for country, n in count.items() if country != 39)
    total = sum(float(f or 0) for r in rows for f in r[3:])
    italy = sum(float(f or 0) for r in rows for f in r[3:] if r[2] == "39")
    assert 0.9 < italy / total < 0.999


def test_visitors_use_little_internet(rows: list[list[str]]) -> None:
    def internet_per_sms(chosen: list[list[str]]) -> float:
        return sum(float(r[7] or 0) for r in chosen) / sum(float(r[3] or 0) for r in chosen)

    italy = internet_per_sms([r for r in rows if r[2] == "39"])
    abroad = internet_per_sms([r for r in rows if r[2] != "39"])
    assert abroad == pytest.approx(0.1 * italy, rel=0.3)


def test_empty_fields_are_empty_and_commonest_at_night(rows: list[list[str]]) -> None:
    def share_empty(hour: int) -> float:
        chosen = [
            r[3] == ""
            for r in rows
            if r[2] == "39" and datetime.fromtimestamp(int(r[1]) / 1000, ROME).hour == hour
        ]
        return sum(chosen) / len(chosen)

    assert share_empty(4) > 0.05
    assert share_empty(12) == 0
    assert all(r[7] for r in rows if r[2] == "39")
    assert all(any(r[3:]) for r in rows)


def test_services_have_sensible_ratios(rows: list[list[str]]) -> None:
    sums = {s: sum(float(r[3 + i] or 0) for r in rows) for i, s in enumerate(SERVICES)}
    assert sums["sms_in"] > sums["sms_out"]
    for service in SERVICES[:4]:
        assert 0.02 < sums[service] / sums["internet"] < 0.08


def test_empty_fields_do_not_bias_the_mean() -> None:
    mean = np.full((50, 400, 5), 0.07)
    key = {"cell": np.zeros(20_000, int), "time": np.zeros(20_000, int)}
    frame = raw_day._rows(key, 39, mean, np.random.default_rng(0))
    share = len(frame["internet"].drop_nulls()) / 20_000
    assert share == pytest.approx(1 - np.exp(-0.07 / raw_day.GRAIN), abs=0.02)
    assert frame["internet"].sum() / 20_000 == pytest.approx(0.07, rel=0.03)


def test_range_is_that_of_the_real_cells(city: Path) -> None:
    values = [float(r[7]) for r in rows_of(next(city.glob("sms*"))) if r[2] == "39"]
    assert 3 < min(values) < 50
    assert 100 < np.mean(values) < 400
    assert 1000 < max(values) < 6000


def test_kinds_differ_as_described(internet: dict[str, np.ndarray]) -> None:
    friday, saturday, sunday, tuesday, thursday = 7, 8, 9, 4, 6  # 2013-11-08 is a Friday
    night = internet["nightlife"]
    assert night[friday, 22] > 1.5 * night[tuesday, 22]
    assert night[friday, 23] > 1.5 * night[tuesday, 23]
    assert night[saturday, 23] > 1.5 * night[tuesday, 23]
    assert night[sunday, 1] > 2 * night[tuesday, 1]
    for kind in ("centre", "suburb", "industrial"):
        assert internet[kind][friday, 23] < 1.5 * internet[kind][tuesday, 23]
    assert internet["industrial"][sunday, 10] < 0.4 * internet["industrial"][thursday, 10]
    assert internet["centre"][sunday, 12] < 0.85 * internet["centre"][thursday, 12]
    workdays = [3, 4, 5, 6, 10, 11, 12, 13]
    peak = {kind: int(x[workdays].mean(0).argmax()) for kind, x in internet.items()}
    assert 9 <= peak["centre"] <= 18
    assert 18 <= peak["suburb"] <= 21
    assert 18 <= peak["nightlife"] <= 22
    assert 8 <= peak["industrial"] <= 15


def test_nights_are_calm_everywhere(internet: dict[str, np.ndarray]) -> None:
    for kind, x in internet.items():
        day = x[[3, 4, 5, 6]].mean(0)
        assert day[4] < 0.6 * day.max(), kind


def test_noise_is_correlated_in_time_and_between_cells() -> None:
    kinds = np.array(["suburb"] * 30)
    activity = np.concatenate(
        [x for _, x, _ in simulated_days(kinds, datetime(2013, 11, 4).date(), 28, 1, MILAN)]
    )
    log = np.log(activity).reshape(4, 7 * 144, 30)
    noise = (log - log.mean(0)).reshape(-1, 30) * np.sqrt(4 / 3)
    after = {k: np.mean([np.corrcoef(x[:-k], x[k:])[0, 1] for x in noise.T]) for k in (1, 6)}
    between = np.corrcoef(noise.T)[np.triu_indices(30, 1)].mean()
    assert noise.std() == pytest.approx(0.24, abs=0.03)
    assert after[1] == pytest.approx(0.7, abs=0.07)
    assert after[6] == pytest.approx(0.55, abs=0.08)
    assert between == pytest.approx(0.2, abs=0.08)


def test_no_jump_at_midnight() -> None:
    kinds = np.array(["suburb"] * 200)
    activity = [x for _, x, _ in simulated_days(kinds, datetime(2013, 11, 4).date(), 3, 1, MILAN)]
    inside = np.diff(np.log(activity[0][-12:]), axis=0).std()
    across = np.log(activity[1][0] / activity[0][-1]).std()
    assert across == pytest.approx(inside, rel=0.25)


def hourly(preset, days=28, n_cells=24):
    """Activity an hour `(hour, cell)` of a preset's cells."""
    kinds = zones(CITIES["milan"], block(CITIES["milan"], n_cells), PRESETS[preset].kind)
    days = simulated_days(kinds, date(2013, 11, 4), days, 1, PRESETS[preset])
    activity = np.concatenate([x for _, x, _ in days])
    return activity.reshape(-1, 6, n_cells).sum(axis=1)


def test_a_sparse_city_counts_few_events_and_each_cell_its_own_number():
    activity = hourly("sparse")
    assert (activity == activity.round()).all()
    means = np.sort(activity.mean(axis=0))
    expected = np.geomspace(3, 60, 24)
    assert np.abs(np.log(means / expected)).max() < 0.4
    # Bursts: the variance within an hour of the week is well above the mean, a Poisson count's.
    weeks = activity.reshape(4, 168, 24)
    busy = activity.mean(axis=0) > 10
    assert (weeks.var(axis=0, ddof=1).mean(axis=0) > 1.5 * activity.mean(axis=0))[busy].all()


@pytest.mark.repeats
def test_a_dense_city_is_alike_and_a_heterogeneous_one_is_not():
    """Mean correlation of the cells' hours; and the spread of their mean activity."""

    def alike(preset):
        return np.corrcoef(hourly(preset).T)[np.triu_indices(24, 1)].mean()

    assert alike("dense") > 0.9 > alike("heterogeneous") > alike("sparse")
    dense, sparse = (hourly(preset).mean(axis=0) for preset in ("dense", "sparse"))
    assert np.log(dense).std() < 0.2
    assert dense.min() > 10 * sparse.max()


@pytest.mark.quick(2)
@pytest.mark.parametrize("preset", ["dense", "sparse"])
def test_presets_give_equal_bytes_for_equal_arguments(preset: str, tmp_path: Path) -> None:
    one, two = (simulate(tmp_path / name, preset=preset, cells=4, days=2, seed=3) for name in "ab")
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]
    other = simulate(tmp_path / "c", cells=4, days=2, seed=3)
    assert one[0].read_bytes() != other[0].read_bytes()


@pytest.mark.repeats
def test_a_presets_size_is_the_default(tmp_path: Path) -> None:
    files = simulate(tmp_path / "all", preset="sparse", cells=1)
    assert len(files) == 62
    simulate(tmp_path / "few", preset="sparse", days=1)
    assert len(kinds_of(tmp_path / "few")) == 24


def test_an_unknown_preset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"preset 'sprase'.* sparse"):
        simulate(tmp_path / "city", preset="sprase")


def test_equal_arguments_give_equal_bytes_and_more_days_change_none(tmp_path: Path) -> None:
    def run(name: str, days: int, seed: int) -> dict[str, bytes]:
        simulate(tmp_path / name, cells=9, days=days, seed=seed)
        return {p.name: p.read_bytes() for p in (tmp_path / name).iterdir()}

    short, again, long, other = run("a", 2, 1), run("b", 2, 1), run("c", 3, 1), run("d", 2, 2)
    assert short == again
    assert json.loads(short.pop("SIMULATED.json"))["days"] == 2
    assert short.items() < long.items()
    day = "sms-call-internet-mi-2013-11-01.txt"
    assert short[day] != other[day]
    assert short[day].split(b"\n")[0] != long["sms-call-internet-mi-2013-11-03.txt"].split(b"\n")[0]


def test_milan_cells_are_a_block_around_the_duomo(tmp_path: Path) -> None:
    simulate(tmp_path, cells=9, days=1)
    assert list(kinds_of(tmp_path)) == [4959, 4960, 4961, 5059, 5060, 5061, 5159, 5160, 5161]
    assert kinds_of(tmp_path)[5060] == "centre"


def test_each_kind_has_a_quarter_of_the_cells(city: Path) -> None:
    assert Counter(kinds_of(city).values()) == dict.fromkeys(KINDS, 10)


@pytest.mark.parametrize(("city", "cells"), [("milan", 10_000), ("trentino", 6_575)])
def test_whole_grid_fits(city: str, cells: int) -> None:
    place = CITIES[city]
    ids = block(place, cells)
    assert len(set(ids.tolist())) == cells
    assert 1 <= ids.min() < ids.max() <= place.columns * place.rows


def test_trentino_ids_have_gaps(tmp_path: Path) -> None:
    (path,) = simulate(tmp_path, city="trentino", cells=16, days=1)
    assert path.name == "sms-call-internet-tn-2013-11-01.txt"
    ids = sorted({int(r[0]) for r in rows_of(path)})
    assert len(ids) == 16
    assert ids[4] - ids[3] == 117 - 3
    assert 5200 in ids


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("city", "name", "features"),
    [
        ("milan", "milano-grid.geojson", "features"),
        ("trentino", "trentino-grid.geojson", "trentinogrid"),
    ],
)
def test_grid_agrees_with_the_official_one(
    traffic_dir: Path, tmp_path: Path, city: str, name: str, features: str
) -> None:
    def centres(text: bytes | str) -> dict[int, np.ndarray]:
        return {
            f["properties"]["cellId"]: np.mean(f["geometry"]["coordinates"][0][:4], axis=0)
            for f in json.loads(text)[features]
        }

    simulate(tmp_path, city=city, cells=100, days=1)
    ours = centres((tmp_path / name).read_text())
    official = centres(gzip.decompress((traffic_dir / f"{name}.gz").read_bytes()))
    assert set(ours) == set(kinds_of(tmp_path))
    assert set(ours) <= set(official)
    far = max(np.abs(ours[c] - official[c]).max() for c in ours)
    assert far < {"milan": 0.0007, "trentino": 0.005}[city]  # a third of a cell


def test_grid_rings_are_closed_and_tile(city: Path) -> None:
    grid = json.loads((city / "milano-grid.geojson").read_text())["features"]
    rings = {f["properties"]["cellId"]: f["geometry"]["coordinates"][0] for f in grid}
    assert all(len(r) == 5 and r[0] == r[4] for r in rings.values())
    north_west, north_east = rings[5060][:2]
    assert rings[5061][0] == north_east
    assert rings[5160][3] == north_west  # the row to the north begins where this one ends


def test_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(tmp_path / "a", cells=1, days=2)
    assert capsys.readouterr().err == ""
    simulate(tmp_path / "b", cells=1, days=2, progress=True)
    assert "2/2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"city": "rome"}, "'rome'.*milan, trentino"),
        ({"cells": 10_001}, "cells is 10001; .*10000"),
        ({"cells": 0}, "cells is 0; .*10000"),
        ({"city": "trentino", "cells": 6576}, "6575, .*trentino"),
        ({"days": 0}, "days is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"start": "1 Nov"}, "start is '1 Nov'; .*YYYY-MM-DD"),
    ],
)
def test_arguments_out_of_range(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_real_records_are_never_overwritten(tmp_path: Path) -> None:
    real = tmp_path / "sms-call-internet-mi-2013-11-30.txt"
    real.write_text("real")
    with pytest.raises(InputError, match="empty folder"):
        simulate(tmp_path, cells=1, days=1)
    assert list(tmp_path.iterdir()) == [real]
    with pytest.raises(InputError, match="already exists"):
        simulate(real, cells=1, days=1)
    with pytest.raises(InputError, match="another folder"):
        simulate(real / "sub", cells=1, days=1)
