"""The dates at the top of a figure."""

import pytest
from PIL import Image

from stforecast.bench.drawing import panels, save_figure
from stforecast.bench.figures import dates_tested


def test_runs_without_times_have_no_period(throw):
    assert dates_tested([throw()]) == ""
    assert dates_tested([]) == ""


def test_the_period_holds_all_test_parts(throw, monkeypatch):
    monkeypatch.setattr(
        "stforecast.federated.runs.run_folder.Run.test_span",
        property(lambda run: run.about["span"]),
    )
    runs = [throw(), throw(), throw()]
    spans = [("2013-11-22 00:00:00", "2013-11-24 23:00:00")] * 2
    spans += [("2013-11-19 00:00:00", "2013-11-21 23:00:00")]
    for run, span in zip(runs, spans, strict=True):
        run.about["span"] = span
    assert dates_tested(runs[:2]) == "test part 2013-11-22 to 2013-11-24"
    assert dates_tested(runs) == "test part 2013-11-19 to 2013-11-24, 2 spans"


def test_a_note_is_drawn_at_the_top(tmp_path):
    sizes = []
    for name, note in (("plain", ""), ("dated", "test part 2013-11-22 to 2013-11-24")):
        fig, (ax,) = panels(3.5, 2.0)
        ax.plot([0, 1])
        save_figure(fig, tmp_path / f"{name}.png", note)
        sizes.append((fig.get_figheight(), fig.get_figheight() * ax.get_position().height))
        top = Image.open(tmp_path / f"{name}.png").convert("L").crop((350, 0, 700, 16))
        assert (top.getextrema()[0] < 200) is bool(note)
    (plain, panel), (dated, same) = sizes
    assert dated > plain
    assert same == pytest.approx(panel, rel=0.05), "the figure grows, not the panel shrinks"
