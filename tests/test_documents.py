"""What the documents say to type works: every command and Python block is run from the file itself.

Commands of a document run in order, in one folder, shortened as `SHORTER` states. What is not run
stands in `NOT_RUN` with its reason; what is neither run nor listed fails, as does a stale entry.
Tutorials run as they stand, with `experiments.site.tutorials`.
"""

import logging
import os
import pydoc
import re
import shlex
import sys
import textwrap
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import h5py
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from small_files import made_once

from data_prep.cube import open_cube, write_cube
from experiments.benchmarks.__main__ import main as benchmarks
from experiments.site.hooks import GENERATED, PAGES
from experiments.site.tutorials import pictures, steps
from stforecast.baselines import BASELINES
from stforecast.baselines.base import Peer
from stforecast.bench.grid import load_grid
from stforecast.cli.bench import find_config
from stforecast.cli.main import cli, main
from stforecast.forecasting.config import defaults, unread
from stforecast.methods import METHODS
from vision.config import defaults as image_defaults
from vision.config import unread as image_unread
from vision.methods import METHODS as IMAGE_METHODS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
)
TUTORIALS = [document for document in DOCUMENTS if document.startswith("docs/tutorials/")]
TYPED = [document for document in DOCUMENTS if document not in ("README.md", *TUTORIALS)]

SLOW_PAGES = ("choose", "coming-from", "compare", "horizons", "operate", "papers/")
LONG = [d for d in DOCUMENTS if d.removeprefix("docs/").startswith(SLOW_PAGES)]
"""Documents whose commands run among the slow tests: other tests take the same ways."""

TINY_TRANSFORMER = "--backbone tiny-random --input-size 16"
QUICK = "bench quick"

SHORTER = {
    "README.md": {"--cells 100": "--cells 3"},
    "docs/choose.md": {"--method fedlean": "", "--folds 2": "--folds 1"},
    "docs/compare.md": {
        "--method fedlean --method lightgbm": "--method ridge --method seasonal_day",
        "--folds 3": "--folds 2 --test 2d",
    },
    "docs/coming-from.md": {
        "--data mnist --images FOLDER": "--data digits8x8",
        "--clients 20 --rounds 100": "--clients 3 --rounds 1",
        "--method fedavg --rounds 3": "--method fedavg --rounds 1",
    },
    "docs/images.md": {
        "--rounds 20": "--rounds 1",
        "--method pfpl": "--method pfpl --clients 3 --shots 20",
        "--data mnist+usps+syn-generated --images FOLDER": "--data digits8x8 --clients 3",
        "--domains mnist:7,usps:5,syn-generated:8 --shots 40": "--shots 10",
        "--backbone VIT.safetensors --input-size 112": (
            f"{TINY_TRANSFORMER} --rounds 1 --clients 2 --shots 2"
        ),
    },
    "docs/long-runs.md": {
        "--method fuels --out runs/long": "--method fuels --rounds 1 --out runs/long",
        "--robust trimmed": "--robust trimmed --rounds 1",
    },
    "docs/plan.md": {"--service internet": "--service internet --method ridge"},
    "docs/serve.md": {"--threshold 2000 --out": "--threshold 2000 --method ridge --out"},
    "docs/federation.md": {"/var/lib/stforecast/run-1": "run-1"},
    "docs/methods.md": {"--clients dirichlet:8": "--clients dirichlet:2"},
    "docs/operate.md": {
        "--horizon 24 --out town/": "--horizon 24 --method ridge --out town/",
    },
}
"""What is typed in place of what stands in a document, so that it takes seconds."""

SLOWER = {
    "README.md": {
        QUICK: f"{QUICK} --data milan.nc --service internet --seed 1 --rounds 1",
    },
    "docs/images.md": {
        "--data mnist+usps+syn-generated --images FOLDER": (
            "--data mnist+usps+syn-generated --images IMAGES"
        ),
        "--domains mnist:7,usps:5,syn-generated:8 --shots 40": (
            "--domains mnist:7,usps:5,syn-generated:8 --shots 40"
        ),
    },
}
"""Instead of some of these, under `-m slow`; IMAGES is the folder of the real ones."""

ENDS = {"stforecast monitor town/run --now 2013-12-04": 21}
"""How commands begin that end otherwise than with 0, and their exit codes."""

NOT_RUN = {
    "docs/coming-from.md": {"python main.py": "PFLlib's"},
    "docs/compare.md": {
        "stforecast prepare table --raw milan-records": "needs the file; test_score.py types these",
        "stforecast score": "of that file",
        "stforecast bench who_wins": "of that file; takes minutes with the default",
    },
    "docs/horizons.md": {
        "stforecast download metr-la": "needs a network; tests of data_prep/download use loopback",
        "stforecast run --data milan.nc --service internet --static": (
            "these cells have no columns; tests of data/covariates do"
        ),
    },
    "docs/pretrained.md": {
        "python -m experiments.pretrain": "a quarter of an hour; test_pretrain.py trains a little",
    },
    "docs/federation.md": {
        "ssh-keygen": "OpenSSH's; tests of experiments/local_flower.py make keys",
        "stforecast federate serve": "a server that stays; tests of strangers start it",
        "export FLWR_HOME": "of that server",
        "flwr": "Flower's, talks to that server; make federation-demo does it",
        "stforecast node": "a node that stays; make federation-demo starts three",
        "stforecast federate status": "of a run on the server; test_federate_command.py shows one",
        "stforecast federate resume": "of a run on the server; test_federate_command.py goes back",
        "stforecast predict '/var/lib": "of a finished node; tests of stforecast/flower do",
        "stforecast federate check": "of a finished node; test_own_model.py checks one",
        "stforecast federate update": "of a finished run; test_continuation.py, test_own_model.py",
    },
    "docs/flower-app/README.md": {
        "pip install": "needs a network",
        "flwr": "Flower's; test_fuels_app.py runs the app",
        "flower-super": "Flower's; test_fuels_app.py starts them",
    },
    "docs/images.md": {
        "stforecast vision predict": "test_new_images_are_predicted_as_the_page_says does",
    },
    "docs/long-runs.md": {
        "export RAY_AUTH_MODE": "of a cluster; test_ray_cluster.py starts one of two nodes",
        "ray start": "of that cluster",
        "RAY_ADDRESS=": "of that cluster",
        "ray stop": "of that cluster",
    },
    "docs/nwdaf.md": {
        "stforecast federate check": "of the demo's node; test_own_model.py checks one",
    },
    "docs/serve.md": {
        "stforecast serve": "a server that stays; tests/stforecast/cli/test_serve.py asks one",
        "curl": "of that server",
        "openssl": "OpenSSL's",
        "stforecast export": "needs the extra onnx; test_export.py runs graphs",
    },
    "docs/runbook.md": {
        "stforecast federate status": "of a run on the server; test_federate_command.py shows one",
        "node_exporter": "Prometheus's",
    },
}
"""How commands begin that no test types, and why."""

SLOW = {"first-forecast", "benchmark", "images"}
"""Tutorials that run under `-m slow`; README and docs/images.md do most of two of them."""


class Block(NamedTuple):
    """A fenced or indented block: its language (empty if indented) and its text."""

    language: str
    text: str


@cache
def blocks(document):
    """Every block of a document, in order."""
    text = (ROOT / document).read_text()
    fenced, indented = r"^```(\w*)\n([\s\S]*?)^```$", r"(?<=\n\n)((?: {4}.*\n|\n(?= {4}))+)"
    found = re.finditer(f"{fenced}|{indented}", text, re.M)
    return [Block(m[1] or "", m[2] or textwrap.dedent(m[3])) for m in found]


def commands(document):
    """Every line to type, continued lines joined and comments left out."""
    shells = [b.text for b in blocks(document) if b.language in ("", "sh", "bash", "console")]
    lines = "".join(shells).replace("\\\n", " ").splitlines()
    return [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]


def shortened(document, slow=False):
    """The lines of a document as they are run.

    Raises:
        AssertionError: if a substitution does not change anything.
    """
    lines = commands(document)
    shorter = SHORTER.get(document, {}) | (SLOWER.get(document, {}) if slow else {})
    for old, new in shorter.items():
        assert any(old in line for line in lines), f"{document} has no {old!r} any more"
        lines = [line.replace(old, new) for line in lines]
    return lines


def reason_not_to_run(document, line):
    """Why a command is not run, or None."""
    reasons = NOT_RUN.get(document, {})
    return next((why for begin, why in reasons.items() if line.startswith(begin)), None)


def type_in(line):
    """Do a command of `stforecast` in this process; it must end as it should."""
    words = shlex.split(line)
    assert words[0] == "stforecast", f"neither run nor listed in NOT_RUN: {line}"
    with pytest.raises(SystemExit) as done:
        main(words[1:])
    expected = next((code for begin, code in ENDS.items() if line.startswith(begin)), 0)
    assert (done.value.code or 0) == expected, line


def check_make(line):
    """Targets exist."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert shlex.split(line)[1] in targets, line


def check_pip(line):
    """Extras that are named exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"\[([\w,]+)\]", line):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys(), line


def check_bench(line):
    """The benchmark exists, and its file and preset can be read."""
    words = shlex.split(line)
    preset = words[words.index("--preset") + 1] if "--preset" in words else None
    assert load_grid(find_config(Path(words[2])), preset).entries


CHECKED = {"make ": check_make, "pip install ": check_pip, "stforecast bench ": check_bench}
"""How commands begin that take minutes or change the machine, and what is checked of them."""


def do(document, line, slow=False):
    """Check a command, or type it."""
    check = next((c for begin, c in CHECKED.items() if line.startswith(begin)), None)
    if check:
        check(line)
    if not check or (slow and QUICK in line):
        type_in(line)


def write_metr_la(folder):
    """Nine days of three detectors, as DCRNN's authors publish them."""
    times = pd.date_range("2012-03-01", periods=9 * 288, freq="5min")
    hour = times.hour.to_numpy()[:, None] + np.arange(3)
    folder.mkdir()
    with h5py.File(folder / "metr_la.h5", "w") as file:
        group = file.create_group("df")
        group.attrs.update({"pandas_type": np.bytes_("frame"), "nblocks": np.int64(1)})
        group["axis0"] = np.array(["773869", "767541", "717447"], dtype="S6")
        group["axis1"] = times.to_numpy().astype("datetime64[ns]").astype(np.int64)
        group["axis1"].attrs["kind"] = np.bytes_("datetime64")
        group["block0_values"] = 50 + 10 * np.sin(hour / 24 * 2 * np.pi)


def write_new_cells(cube, path):
    """Three cells of a cube under other names."""
    with open_cube(cube) as ds:
        some = ds.isel(cell=slice(3))
        write_cube(some.assign_coords(cell=some["cell"] + 10_000), path)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to type in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_list_of_this_test_is_about_what_stands_there(document):
    lines = commands(document)
    for begin in NOT_RUN.get(document, {}):
        assert any(line.startswith(begin) for line in lines), (
            f"{document} has no {begin!r} any more"
        )
    languages = {"", "sh", "bash", "console", "python", "toml", "text"}
    assert {b.language for b in blocks(document)} <= languages


def test_the_readme_can_be_typed_from_top_to_bottom(place):
    read_the_readme()


def test_the_numbers_of_the_readme_stand_on_the_pages_that_it_links():
    readme = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text())
    rows = [row for row in readme.splitlines() if row.startswith("| ")]
    checked = 0
    for row in rows:
        for page in re.findall(r"\]\((docs/[^)#]+)", row):
            text, numbers = (ROOT / page).read_text(), re.findall(r"\*\*([\d.,]+)\*\*", row)
            assert [n for n in numbers if not re.search(rf"\b{re.escape(n)}\b", text)] == []
            checked += len(numbers)
    assert checked > 7


@pytest.mark.parametrize(
    "document",
    [pytest.param(d, marks=[pytest.mark.slow] * (d in LONG)) for d in TYPED],
)
def test_other_documents_can_be_typed_from_top_to_bottom(document, place, milan, capsys):
    for name in ("milan.nc", "metr-la", "new.nc"):
        (place / name).symlink_to(milan / name)
    for block in blocks(document):
        if block.text.startswith("kind,start,end"):
            (place / "matches.csv").write_text(block.text)
    with open_cube(place / "milan.nc") as ds:
        sites = [f"{cell},{'south' if i else 'north'}" for i, cell in enumerate(ds["cell"].values)]
    (place / "members.csv").write_text("\n".join(["cell,site", *sites]))
    for line in shortened(document):
        if not reason_not_to_run(document, line):
            do(document, line)
    if document == "docs/compare.md":
        (text,) = [b.text for b in blocks(document) if b.language == "python"]
        exec(text.replace("fedlean", "ridge"), known := {})
        assert set(known["table"]["method"]) == {"ridge", "seasonal_day"} == set(known["errors"])
    if document == "docs/operate.md":
        shown = capsys.readouterr().err.splitlines()
        (lines,) = [b.text for b in blocks(document) if b.text.startswith("town/run: ")]
        assert set(lines.splitlines()) <= set(shown)
    if document == "docs/plan.md":
        exec("\n".join(b.text for b in blocks(document) if b.language == "python"), known := {})
        assert len(known["dates"]) == len(known["series"].cells)
        assert known["slept"].limits.tolist() == [2500] * len(known["series"].cells)
    if document == "docs/horizons.md":
        (text,) = [b.text for b in blocks(document) if "sample_paths" in b.text]
        exec(text, known := {})
        assert known["busiest_hour"].sizes == {"path": 40}
        assert known["bounds"].upper.columns.tolist() == ["site north", "site south", "all"]
        assert "period 288, extra_lags 2-36,275-290" in capsys.readouterr().out


@pytest.mark.slow
def test_what_replaces_other_libraries_gives_forecasts_of_every_cell(place):
    times = pd.date_range("2024-01-01", periods=24 * 21, freq="h")
    load = 50 + 20 * np.sin(2 * np.pi * (times.hour.to_numpy()[:, None] + [0, 3, 8]) / 24)
    noise = np.random.default_rng(1).normal(0, 2, load.shape)
    wide = pd.DataFrame(load + noise, times.rename("ds"), pd.Index(["a", "b", "c"]))
    df = wide.reset_index().melt("ds", var_name="unique_id", value_name="y")
    own = [b.text for b in blocks("docs/coming-from.md") if "import Forecaster" in b.text]
    for block in own:
        known = {"df": df, "wide": wide, "newer": wide}
        exec(block, known)
        assert known["forecast"].shape == (24, 3)
        assert list(known["forecast"].columns) == ["a", "b", "c"]
        assert "bounds" not in block or known["bounds"].lower.shape == (24, 3)
    assert len(own) == 2


@pytest.mark.parametrize(
    "document",
    [pytest.param(d, marks=[pytest.mark.slow] if Path(d).stem in SLOW else []) for d in TUTORIALS],
)
def test_tutorials_print_what_they_show(document, place, caplog, monkeypatch):
    text = (ROOT / document).read_text()
    monkeypatch.setattr(logging.getLogger("data_prep"), "handlers", [caplog.handler])
    check_printed(text)
    of_files = [notice for notice in caplog.messages if re.match(r".*\.csv: .*read as UTC", notice)]
    assert len(of_files) <= 1
    drawn = pictures(text)
    assert all((place / name).exists() for name in drawn)
    assert all((ROOT / "docs" / "tutorials" / "figures" / name).exists() for name in drawn)


def check_printed(text):
    """Of each line that is shown, the first word is printed: numbers may differ by machine."""
    for shown, printed in steps(text):
        assert first_words(shown) - {"…"} <= first_words(printed), (
            "run: python -m experiments.docs tutorials"
        )


def first_words(text):
    """The first word of each line that begins with a letter or a sign of a table."""
    words = {line.split()[0] for line in text.splitlines() if line.strip()}
    return {word for word in words if not word[0].isdigit()}


@pytest.mark.slow
def test_the_readme_can_be_typed_with_its_own_benchmark(place):
    read_the_readme(slow=True)


@pytest.mark.slow
def test_images_can_be_typed_with_their_own_images(place, data_dir):
    (place / "IMAGES").symlink_to(data_dir / "images")
    for line in shortened("docs/images.md", slow=True):
        if not reason_not_to_run("docs/images.md", line):
            do("docs/images.md", line)


def read_the_readme(slow=False):
    """Run the blocks that show what they print, then check or type what stands outside them."""
    text = (ROOT / "README.md").read_text()
    for old, new in SHORTER["README.md"].items():
        text = text.replace(old, new)
    check_printed(text)
    for line in shortened("README.md", slow):
        if line.startswith(tuple(CHECKED)):
            do("README.md", line, slow)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_quoted_within_the_text_exists(document):
    prose = re.sub(r"^```.*?^```$", "", (ROOT / document).read_text(), flags=re.M | re.S)
    quoted = [" ".join(q.split()) for q in re.findall(r"`([^`]+)`", prose)]
    for text in quoted:
        words = text.split()
        if text.startswith(("make ", "pip install ")):
            CHECKED[f"{text.partition(' install')[0].split()[0]} ".replace("pip ", "pip install ")](
                text
            )
        elif words[:2] == ["python", "-m"]:
            module = ROOT / words[2].replace(".", "/")
            assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), text
            if words[2] == "experiments.benchmarks":
                assert words[3] in benchmarks.commands, text
        elif words[0] == "stforecast" and len(words) > 1:
            check_command(words[1:])
        # Names of two parts are also those of groups of entry points.
        elif name := re.search(r"\b(data_prep|stforecast|vision)(\.\w+){2,}", text):
            assert pydoc.locate(name[0]), text


def check_command(words):
    """The command exists, with every alternative that is named, as in `list methods|data`."""
    command = cli
    while words and isinstance(command, click.Group):
        if words[0] == "NAME" or words[0].startswith("-"):
            return
        command = command.get_command(click.Context(command), words[0])
        assert command, f"no command {words[0]}"
        words = words[1:]
    if command.name == "list" and words:
        for what in words[0].split("|"):
            command.main([what], standalone_mode=False)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_pictures_lead_to_files(document):
    """Anchors and names of the code are checked by `make docs`."""
    generated = {ROOT / "docs" / page for page in (*PAGES.values(), *GENERATED)}
    for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (ROOT / document).read_text()):
        path = ((ROOT / document).parent / link).resolve()
        assert path.exists() or path in generated, link


def test_every_word_of_the_glossary_is_linked_and_every_linked_word_is_there():
    words = re.findall(r"^### (.*)$", (ROOT / "docs/glossary.md").read_text(), re.M)
    links = re.findall(r"glossary\.md#([\w-]+)", "".join((ROOT / d).read_text() for d in DOCUMENTS))
    assert len(words) == 25
    assert set(links) == {word.lower().replace(" ", "-") for word in words}


def test_new_images_are_predicted_as_the_page_says(place):
    for name, value in (("dark", 20), ("light", 230)):
        (place / "mine" / name).mkdir(parents=True)
        for i in range(10):
            grey = np.full((9, 9), value + i, np.uint8)
            Image.fromarray(grey).save(place / f"mine/{name}/{i}.png")
    (place / "new").mkdir()
    for name, value in (("a", 240), ("b", 10)):
        Image.fromarray(np.full((50, 40), value, np.uint8)).save(place / f"new/{name}.jpg")
    few = "--clients 2 --ways 2 --rounds 5 --channels 4"
    type_in(f"stforecast vision run --data folder --images mine {few} --out runs/mine")
    (line,) = [line for line in commands("docs/images.md") if "vision predict" in line]
    type_in(line)
    assert (place / "classes.csv").read_text() == "file,class\na.jpg,light\nb.jpg,dark\n"


# What the page "Extend it" adds; test_external_package.py uses all of it.


def contributed(word):
    """The file of that page that holds a word."""
    (text,) = [
        b.text for b in blocks("docs/extend.md") if b.language == "python" and word in b.text
    ]
    return text


def add_file(package, name, text, tmp_path, monkeypatch):
    """Let a package have one more file for this test."""
    (tmp_path / package.__name__).mkdir()
    (tmp_path / package.__name__ / f"{name}.py").write_text(text)
    places = [*package.__path__, str(tmp_path / package.__name__)]
    monkeypatch.setattr(package, "__path__", places)
    # What is set and taken away now is taken away again after the test, once it is imported.
    monkeypatch.setitem(sys.modules, f"{package.__name__}.{name}", None)
    monkeypatch.delitem(sys.modules, f"{package.__name__}.{name}")
    monkeypatch.setattr(package, name, None, raising=False)


def test_the_method_of_the_page_is_found_and_is_fedprox(tmp_path, monkeypatch):
    import stforecast.methods
    from stforecast import Forecaster

    add_file(stforecast.methods, "near", contributed("class Near"), tmp_path, monkeypatch)
    hours = pd.date_range("2013-11-01", periods=240, freq="h")
    table = pd.DataFrame({"a": np.sin(hours.hour / 4), "b": np.cos(hours.hour / 4)}, hours)
    ours, theirs = (
        Forecaster(name, mu=0.5, rounds=2, split="days:7,1,2", model="mlp").fit(table)
        for name in ("fedprox", "near")
    )
    losses = ["train_loss", "validation_loss"]
    pd.testing.assert_frame_equal(ours.rounds_[losses], theirs.rounds_[losses])


def test_the_data_set_of_the_page_becomes_a_command(tmp_path, monkeypatch, capsys):
    from data_prep import sets

    add_file(sets, "utopia", contributed("SOURCES"), tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    hours = pd.date_range("2024-01-01", periods=48, freq="h", name="time")
    pd.DataFrame({"x": range(48), "y": range(48)}, hours).to_csv("counts.csv")
    type_in("stforecast prepare utopia --raw counts.csv --year 2024 --out utopia.nc")
    assert "48 steps of 60 minutes × 2 cells" in capsys.readouterr().out


# Every method of the generated tables, by the commands of the papers' pages.

FORECASTS = {**METHODS, **BASELINES}
PEERS = [kind for kind in BASELINES.values() if issubclass(kind, Peer)]  # They need an extra.


def sample(known, made_for):
    """One method of each kind of defaults."""
    kinds = {}
    for name in known:
        kinds.setdefault(repr(sorted(made_for(name).items())), name)
    return list(kinds.values())


def start(document, method, more, unread):
    """Type the command of a paper's page for another method, without rounds if it has none."""
    (line,) = [c for c in commands(document) if "--method" in c]
    line = re.sub(r"--method \S+", f"--method {method}", line)
    if unread(method, {"rounds": 1}):
        line = line.replace("--rounds 1 ", "")
    type_in(f"{re.sub(r'--out .*', '--out run', line)} {more}")


@pytest.fixture(scope="session")
def milan(tmp_path_factory):
    """A folder of what documents read: the README's cube, of fewer cells, new cells and METR-LA."""
    return made_once(tmp_path_factory, "milan", prepare_milan)


def prepare_milan(folder):
    before = Path.cwd()
    os.chdir(folder)
    try:
        for line in shortened("README.md"):
            if line.startswith(("stforecast simulate", "stforecast prepare")):
                type_in(line)
    finally:
        os.chdir(before)
    write_metr_la(folder / "metr-la")
    write_new_cells(folder / "milan.nc", folder / "new.nc")


def start_forecast(method, milan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("milan.nc").symlink_to(milan / "milan.nc")
    fewer = "--epochs 1 --closeness 24" if "epochs" in defaults(method) else ""
    fewer += " --warmup-epochs 1" * hasattr(FORECASTS[method].Options, "warmup_epochs")
    start("docs/papers/fuels.md", method, fewer, unread)
    assert Path("run/run.json").exists()


def start_images(method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frozen = image_defaults(method)["model"] == "vit"
    smaller = TINY_TRANSFORMER if frozen else "--size 8"
    start("docs/papers/pfpl.md", method, f"--clients 2 --shots 8 {smaller}", image_unread)
    assert Path("run/run.json").exists()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", sample(FORECASTS, defaults))
def test_methods_of_forecasts_start_as_the_page_says(method, milan, tmp_path, monkeypatch):
    start_forecast(method, milan, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m, kind in FORECASTS.items() if kind not in PEERS])
def test_every_method_of_forecasts_starts(method, milan, tmp_path, monkeypatch):
    start_forecast(method, milan, tmp_path, monkeypatch)


@pytest.mark.quick(4)
@pytest.mark.parametrize("method", sample(IMAGE_METHODS, image_defaults))
def test_methods_of_images_start_as_the_page_says(method, tmp_path, monkeypatch):
    start_images(method, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("method", IMAGE_METHODS)
def test_every_method_of_images_starts(method, tmp_path, monkeypatch):
    start_images(method, tmp_path, monkeypatch)
