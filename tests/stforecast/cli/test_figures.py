import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.bench.figures import draw_figures, parse_figures
from stforecast.bench.jobs import run_grid
from stforecast.plots import PLOTS

LABELS = ["solo", "ridge", "w/o x"]


def test_entries_are_read():
    plain, chosen = parse_figures(
        ["cdf", {"plot": "bars", "name": "Fig 4", "methods": ["solo"], "seeds": [1],
                 "metric": "mae"}], LABELS, PLOTS
    )  # fmt: skip
    assert (plain.plot, plain.name, plain.methods, plain.options) == ("cdf", "cdf", (), {})
    assert (chosen.name, chosen.methods, chosen.seeds) == ("Fig 4", ("solo",), (1,))
    assert chosen.options == {"metric": "mae"}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["pie"], "plot 'pie'; .*cdf"),
        ([{"name": "x"}], "no plot"),
        (
            [{"plot": "cdf", "metrik": "mse"}],
            "'metrik'; .*cells",
        ),
        ([{"plot": "cdf", "methods": ["sole"]}], "figure cdf: .*'sole'"),
        ([{"plot": "cdf", "seeds": "all"}], "figures .*type"),
        (["cdf", {"plot": "horizon", "name": "CDF"}], "several figures"),
    ],
)
def test_what_cannot_be_drawn_is_refused(entries, message):
    with pytest.raises(InputError, match=message):
        parse_figures(entries, LABELS, PLOTS)


def test_a_figure_shows_the_methods_and_seeds_asked_for(make_run):
    runs = [make_run(m, label=m, seed=s) for m in ("solo", "w/o x") for s in (1, 2)]
    (some,) = parse_figures([{"plot": "cdf", "methods": ["w/o x"], "seeds": [2]}], LABELS, PLOTS)
    assert some.chosen(runs) == [runs[3]]
    (turned,) = parse_figures([{"plot": "cdf", "methods": ["w/o x", "solo"]}], LABELS, PLOTS)
    assert turned.chosen(runs) == [*runs[2:], *runs[:2]]
    (everything,) = parse_figures(["cdf"], LABELS, PLOTS)
    assert everything.chosen(runs) == runs


def test_a_benchmark_draws_its_figures_and_goes_on_where_one_fails(write, tmp_path):
    grid = write('["last_value", "solo"]', 'services = ["sms", "internet"]\nfigures = ["cdf", '
                 '{ plot = "communication", name = "Figure 4", methods = ["solo"] }]')  # fmt: skip
    gallery = run_grid(grid, tmp_path).gallery
    figures = tmp_path / "figures"
    assert gallery.drawn == [figures / "town-sms-cdf.png", figures / "town-internet-cdf.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in gallery.drawn)
    assert set(gallery.undrawn) == {"town-sms-figure-4", "town-internet-figure-4"}
    text = (tmp_path / "table.md").read_text()
    assert "![town-sms-cdf](figures/town-sms-cdf.png)" in text
    assert mentions(text, "town-sms-figure-4:", "loss")


def test_a_stale_figure_goes_when_it_cannot_be_drawn_anew(make_run, tmp_path):
    stale = tmp_path / "milan-internet-predictions.png"
    stale.write_bytes(b"old")
    run = make_run()
    (run.folder / "forecasts.nc").unlink()
    gallery = draw_figures(parse_figures(["predictions"], [], PLOTS), [run], tmp_path, PLOTS)
    assert list(gallery.undrawn) == ["milan-internet-predictions"]
    assert not stale.exists()


@pytest.mark.repeats
def test_a_label_has_one_colour_in_all_figures_of_a_benchmark(make_run, tmp_path):
    runs = [make_run("solo", label=f"w/o {i}", clients={"a": 1.0}) for i in range(5)]
    runs.append(make_run("fuels", label="elsewhere", data="trento.nc", clients={"a": 1.0}))
    specs = parse_figures(["cdf", {"plot": "cdf", "name": "some", "methods": ["w/o 3"]}],
                          ["w/o 3"], PLOTS)  # fmt: skip
    colours = {}

    def drawn(runs):
        figure = PLOTS["cdf"](runs)
        for line in figure.axes[0].lines:
            if (name := line.get_label().split(":")[0]).startswith("w/o"):
                colours.setdefault(name, []).append(line.get_color())
        return figure

    draw_figures(specs, runs, tmp_path, {"cdf": drawn})
    assert len(set(map(tuple, colours.values()))) == 5
    assert len(colours["w/o 3"]) == 2
    assert len(set(colours["w/o 3"])) == 1
