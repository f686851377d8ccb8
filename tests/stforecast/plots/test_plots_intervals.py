"""The figure of intervals, read back from its axes."""

import json

import numpy as np
import pytest
import xarray as xr
from matplotlib.text import Text
from small_files import write_netcdf

from data_prep.base.errors import InputError
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.forecasts import intervals

TIMES = np.datetime64("2013-11-25", "ns") + np.arange(4) * np.timedelta64(1, "h")


@pytest.fixture
def make_run(tmp_path):
    """Writes a run with forecasts of one cell: 90 % intervals of ±1 around 10."""

    def make(name="fuels", bounds=True, y=(10.0, 10.5, 12.0, np.nan), n_steps=1):
        out = tmp_path / name
        out.mkdir()
        settings = {"method": name, "select": "best", "seed": 1}
        about = {"settings": settings, "label": name, "data": "milan.nc", "service": "internet"}
        about |= {"units": "MB", "lines": {}}
        (out / "run.json").write_text(json.dumps(about))
        values = {"y": np.array(y), "y_hat": np.full(4, 10.0)}
        if bounds:
            values |= {"lower": np.full(4, 9.0), "upper": np.full(4, 11.0)}
        dims = ("cell", "time", "horizon")
        ds = xr.Dataset(
            {
                k: (dims, np.tile(v[None, :, None], n_steps), {"units": "MB"})
                for k, v in values.items()
            },
            {"cell": [4142], "time": TIMES, "horizon": np.arange(1, n_steps + 1)},
            {"clock": "utc", "coverage": 0.9},
        )
        write_netcdf(ds, out / "forecasts.nc")
        return ForecastRun.open(out)

    return make


def test_the_band_and_what_lies_outside_are_drawn(make_run):
    fig = intervals([make_run()])
    (ax,) = fig.axes
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (9.0, 11.0)
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    assert lines["observed, outside"].tolist() == [12.0]
    assert lines["fuels"].tolist() == [10.0] * 4
    # Two of the three that were observed.
    assert ax.get_title(loc="left").endswith(": 67% inside")
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    assert "90% interval, fuels" in labels


def test_each_run_has_a_panel_of_each_cell(make_run):
    fig = intervals([make_run("fuels"), make_run("ridge", y=(10, 10, 10, 10))], cells="4142")
    titles = [ax.get_title(loc="left") for ax in fig.axes]
    assert titles == ["cell 4142; fuels: 67% inside", "cell 4142; ridge: 100% inside"]


def test_the_first_middle_and_last_step_are_drawn(make_run):
    run = make_run(n_steps=24)
    titles = [ax.get_title(loc="left").split("; ")[1] for ax in intervals([run]).axes]
    assert titles == [f"step {step} ahead: 67% inside" for step in (1, 12, 24)]
    (ax,) = intervals([run], horizon=2).axes
    assert ax.get_title(loc="left") == "cell 4142: 67% inside"


def test_a_run_without_intervals_is_named(make_run):
    with pytest.raises(InputError, match=r"solo: .* intervals="):
        intervals([make_run("solo", bounds=False)])


def test_a_run_without_intervals_is_left_out_and_named(make_run):
    fig = intervals([make_run("fuels"), make_run("solo", bounds=False)])
    assert len(fig.axes) == 1
    texts = [text.get_text() for text in fig.findobj(Text)]
    assert any("intervals: solo" in text for text in texts)
