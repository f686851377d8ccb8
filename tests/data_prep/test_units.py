"""Units of data: their factors, and tables in several."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.preparation import open_again, preparation_of
from data_prep.readers.units import factor
from data_prep.sets.table import read

TIMES = pd.date_range("2024-05-10", periods=48, freq="h")
VALUES = np.arange(1.0, 49)


def save(path, **columns):
    pd.DataFrame({"time": TIMES, **columns}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("of", "to", "wanted"),
    [
        ("GB", "MB", 1000), ("MB", "GB", 1 / 1000), ("GiB", "MiB", 1024), ("B", "bit", 8),
        ("h", "s", 3600), ("m/s", "km/h", 3.6),
        ("KB", "kB", 1), ("Mbps", "Mbit/s", 1), ("MB/s", "Mbit/s", 8), ("TB", "B", 1e12),
    ],
)  # fmt: skip
def test_volumes_and_rates_have_factors(of, to, wanted):
    assert factor(of, to) == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize(("of", "to"), [("GB", "MB/s"), ("1", "GB"), ("mph", "veh/h"), ("", "B")])
def test_other_units_have_none(of, to):
    with pytest.raises(InputError, match="no factor"):
        factor(of, to)


def written(shape):
    """Return columns of 1 to 48 MB, of which every other value is in kB."""
    odd = np.arange(48) % 2 == 1
    number, unit = np.where(odd, 1000 * VALUES, VALUES), np.where(odd, "kB", "MB")
    if shape == "column":
        return {"load": number, "Unit": unit}
    if shape == "text":
        return {"load": [f"{n} {u}" for n, u in zip(number, unit, strict=True)]}
    return {"load (MB)": VALUES}


@pytest.mark.parametrize("shape", ["column", "text", "name"])
def test_values_are_converted_to_given_units(tmp_path, shape):
    path = save(tmp_path / "a.csv", **written(shape))
    for unit, size in (("MB", 1), ("GB", 1000), ("Mbit", 1 / 8)):
        (values,) = read(path, layout="services", units=unit).data_vars.values()
        np.testing.assert_allclose(values.to_numpy().ravel(), VALUES / size)
        assert values.attrs["units"] == unit
        assert values.name in ("load", f"load ({unit})")
    with pytest.raises(InputError, match="convert to km/h") as refused:
        read(path, layout="services", units="km/h")
    assert "leave out --units" in refused.value.typed


@pytest.mark.parametrize("name", ["load (MB)", "PRB (%)", "load（MB）", "负荷（％）"])
def test_a_unit_of_1_is_refused_where_the_table_has_another(tmp_path, name):
    path = save(tmp_path / "a.csv", **{name: VALUES})
    (unit,) = {v.attrs["units"] for v in read(path, layout="services").data_vars.values()}
    assert unit == ("MB" if "MB" in name else "%")
    for layout in ("services", "wide"):
        with pytest.raises(InputError, match=rf"a\.csv: .*{unit}, .* to 1") as refused:
            read(path, layout=layout, units="1")
        assert "leave out --units 1" in refused.value.typed
    bare = save(tmp_path / "b.csv", load=VALUES)
    assert read(bare, layout="wide", units="1")["value"].attrs["units"] == "1"


@pytest.mark.parametrize("form", ["流量({})", "流量 ({})", "流量（{}）", "流量[{}]", "流量［{}］"])
def test_units_in_brackets_of_any_width_are_taken_and_dropped_alike(tmp_path, form):
    path = save(tmp_path / "a.csv", cell="a", **{form.format("MB"): VALUES})
    found = read(path, units="GB")
    assert {name: v.attrs["units"] for name, v in found.data_vars.items()} == {"流量 (GB)": "GB"}
    np.testing.assert_allclose(found["流量 (GB)"].to_numpy().ravel(), VALUES / 1000)
    path = save(tmp_path / "b.csv", cell="a", **{form.format("Mbit/s"): VALUES})
    assert read(path)["流量"].attrs["units"] == "Mbit/s"


def test_units_in_a_row_of_their_own_and_after_numbers_may_have_wide_signs(tmp_path):
    path = tmp_path / "a.csv"
    rows = "".join(f"{t},a,{v},{v}％\n" for t, v in zip(TIMES, VALUES, strict=True))
    path.write_text(f"time,cell,load,PRB\n,,（MB）,\n{rows}")
    found = read(path)
    assert {name: v.attrs["units"] for name, v in found.data_vars.items()} == {
        "load": "MB", "PRB": "%"}  # fmt: skip


def test_a_code_is_named_whatever_the_brackets_of_its_unit(tmp_path):
    names = tmp_path / "names.csv"
    names.write_text("code,name\n1526,Traffic\n")
    for column in ("1526(MB)", "1526 (MB)", "1526（MB）"):
        path = save(tmp_path / "a.csv", cell="a", **{column: VALUES})
        assert read(path, names=str(names), units="GB")["Traffic (GB)"][0, 0] == 0.001


def test_a_unit_of_1_that_earlier_cubes_noted_was_not_given(tmp_path):
    path = save(tmp_path / "a.csv", **{"load (MB)": VALUES, "PRB (%)": VALUES})
    first = preparation_of(read(path, layout="services"))
    assert "units" not in first["options"]
    first["options"]["units"] = "1"
    assert open_again(path, first)["PRB (%)"].attrs["units"] == "%"


def test_percents_of_cells_keep_their_unit(tmp_path):
    path = save(tmp_path / "a.csv", **{"A (%)": VALUES, "B (%)": VALUES, "C (%)": VALUES})
    assert read(path, layout="wide")["value"].attrs["units"] == "%"


def test_a_later_delivery_is_read_in_the_unit_of_the_first(tmp_path):
    first = read(save(tmp_path / "a.csv", **written("text")), layout="services")
    later = save(tmp_path / "b.csv", load=[f"{v / 1000} GB" for v in VALUES])
    again = open_again(later, preparation_of(first))
    np.testing.assert_allclose(again["load"], first["load"])


def test_options_in_notices_of_a_later_delivery_are_those_of_prepare(tmp_path, caplog):
    """As `update` and `serve` read it, which have no such options; that of `predict` is another."""
    caplog.set_level("INFO")
    table = save(tmp_path / "a.csv", load=VALUES)
    cube = read(table, time_zone="Europe/Rome")
    assert "clock=" in caplog.text
    assert "prepare table" not in caplog.text
    caplog.clear()
    open_again(table, preparation_of(cube))
    notice = next(r.getMessage() for r in caplog.records if "clock=" in r.getMessage())
    assert "stforecast prepare table" in notice
    caplog.clear()
    read(table, time_zone="Europe/Rome")
    assert "prepare table" not in caplog.text


@pytest.mark.parametrize(
    ("units", "sizes"),
    [
        (("B", "MB", "GB"), (1, 1e6, 1e9)), (("s", "ms", "min"), (1, 0.001, 60)),
        (("MB", "", "GB"), None), (("MB", "%", "MB"), None), (("MB", "MB", ""), None),
    ],
)  # fmt: skip
def test_columns_of_cells_in_several_units(tmp_path, units, sizes):
    names = [f"{cell} ({unit})" if unit else cell for cell, unit in zip("abc", units, strict=True)]
    path = save(tmp_path / "a.csv", **dict.fromkeys(names, VALUES))
    if sizes:
        np.testing.assert_allclose(read(path, layout="wide")["value"][0], sizes)
        return
    with pytest.raises(InputError, match="are in MB") as refused:
        read(path, layout="wide")
    assert ("--units MB" in refused.value.typed) == (units == ("MB", "MB", ""))
    if units[1] == "MB":
        assert read(path, layout="wide", units="MB")["value"][0].values.tolist() == [1, 1, 1]


@pytest.mark.parametrize("digits", [2, 3, 6])
@pytest.mark.parametrize("mark", [",", "."])
def test_exponents_are_no_separators_of_thousands(tmp_path, digits, mark):
    values = 1000.25 * VALUES
    texts = [f"{v:.{digits}E}".replace(".", mark) for v in values]
    ds = read(save(tmp_path / "a.csv", load=texts))
    np.testing.assert_allclose(ds["value"].values.ravel(), values, rtol=10.0**-digits)


@pytest.mark.parametrize("first", [0, 24], ids=["the same days", "a day in common"])
def test_a_second_file_of_the_same_days_in_another_unit(tmp_path, first):
    """Also if its numbers have digits that rounding added."""
    n, cells = 48, np.tile(["a", "b"], 48)
    load = np.arange(1.1, 97.0)
    for name, unit, size, start in (("a", "MB", 1, 0), ("b", "kB", 1000, first)):
        times = (TIMES + pd.Timedelta(hours=start)).repeat(2)
        values = size * np.concatenate([load, load])[2 * start :][: 2 * n] * (1 + 1e-16)
        frame = pd.DataFrame({"time": times, "cell": cells, f"load ({unit})": values})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    ds = read(tmp_path)
    assert ds["load"].attrs["units"] == "B"
    np.testing.assert_allclose(ds["load"].values.ravel()[: 2 * n], 1e6 * load, rtol=1e-14)
    assert ds.sizes == {"time": n + first, "cell": 2}


def test_a_unit_after_some_numbers_alone_is_refused(tmp_path):
    path = save(tmp_path / "a.csv", load=[f"{v}%" if v > 9 else f"{v / 100}" for v in VALUES])
    with pytest.raises(InputError, match="after all numbers of 'load' or none"):
        read(path)
