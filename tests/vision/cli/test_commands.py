"""The commands for images as a stranger types them."""

import json
import re

import pandas as pd
import pytest
from mentions import mentions
from PIL import Image

from stforecast.cli.main import main
from vision.datasets import folder
from vision.learner import Learner, load_images

TINY = [
    "--clients", "3", "--rounds", "1", "--size", "8", "--channels", "4", "--share", "0.3",
    "--batch-size", "64", "--workers", "1",
]  # fmt: skip


def call(capsys, *args):
    with pytest.raises(SystemExit) as e:
        main([str(a) for a in args])
    out, err = capsys.readouterr()
    return e.value.code or 0, out, err


def test_run_and_plot(capsys, tmp_path):
    run, figure = tmp_path / "run", tmp_path / "rounds.png"
    code, out, _ = call(capsys, "vision", "run", "--out", run, *TINY)
    assert code == 0
    assert "personal" in out
    assert "nearest" in out
    assert "a client sends" in out
    assert call(capsys, "vision", "plot", "rounds", run, "--out", figure)[0] == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    code, out, _ = call(capsys, "info", run, "--json")
    assert {row["model"] for row in json.loads(out)["accuracies"]} == {"personal", "nearest"}
    code, out, _ = call(capsys, "compare", run, "--json")
    assert all(0 <= row["accuracy"] <= 100 for row in json.loads(out))


def test_runs_of_different_partitions_share_no_figure(capsys, tmp_path):
    """Accuracies on different test images rank nothing; a division is drawn of the first run."""
    runs, figure = [tmp_path / "n-way", tmp_path / "dirichlet"], tmp_path / "out.png"
    for run in runs:
        options = ["--partition", run.name, "--out", run]
        assert call(capsys, "vision", "run", *options, *TINY)[0] == 0
    for kind in ("rounds", "bars", "communication"):
        code, _, err = call(capsys, "vision", "plot", kind, *runs, "--out", figure)
        assert code == 2
        assert all(f"{run.name} ({run})" in " ".join(err.split()) for run in runs)
    assert not figure.exists()
    assert call(capsys, "vision", "plot", "partition", *runs, "--out", figure)[0] == 0


def test_a_run_predicts_the_classes_of_new_images(capsys, tmp_path, monkeypatch):
    """Of which only some are in memory at a time."""
    monkeypatch.setattr("vision.cli.commands.IMAGES_AT_ONCE", 4)
    decode, read = folder.decode, []

    def counted(paths, *args):
        read.append(len(paths))
        return decode(paths, *args)

    monkeypatch.setattr(folder, "decode", counted)
    run, new, out = tmp_path / "run", tmp_path / "new", tmp_path / "classes.csv"
    assert call(capsys, "vision", "run", "--out", run, *TINY)[0] == 0
    learner = Learner.load(run)
    images = load_images(learner.config).images[:9]
    (new / "more").mkdir(parents=True)
    for i, image in enumerate(images):
        where = new / "more" if i > 5 else new
        Image.fromarray(image[0].numpy()).save(where / f"{i}.png")
    for options, of in (([], {}), (["--client", 2, "--model", "nearest"], {"view": "nearest"})):
        code, said, _ = call(
            capsys, "vision", "predict", run, "--images", new, "--out", out, *options
        )
        expected = learner.predict(images, client=2 if of else 0, **of)
        found = pd.read_csv(out, dtype=str).set_index("file")["class"]
        assert code == 0
        assert [found[f"{'more/' * (i > 5)}{i}.png"] for i in range(9)] == expected.tolist()
        assert mentions(said, f"{out}:", "9 images", f"client {(2 if of else 0)}: ")
    assert read == [4, 4, 1] * 2
    call(capsys, "vision", "predict", run, "--images", new / "3.png", "--out", out)
    assert out.read_text().splitlines()[1].startswith("3.png,")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--images", "nowhere", "--out", "a.csv"], "nowhere: cannot"),
        (["--images", ".", "--out", "a.csv"], "no images"),
        (["--images", ".", "--out", "a.xlsx"], "a.xlsx: the name"),
        (
            ["--images", "a.png", "--out", "a.csv", "--client", 3],
            "client is 3",
        ),
        (
            ["--images", "a.png", "--out", "a.csv", "--model", "mine"],
            "pfpl 'mine'",
        ),
    ],
)
def test_mistakes_of_predictions_give_one_line(
    capsys, tmp_path, monkeypatch, tiny_run, options, message
):
    monkeypatch.chdir(tmp_path)
    if "a.png" in options:
        Image.new("RGB", (20, 10)).save("a.png")
    code, _, err = call(capsys, "vision", "predict", tiny_run, *options)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "run"
    with pytest.raises(SystemExit):
        main(["vision", "run", "--out", str(folder), *TINY])
    return folder


def test_a_run_with_noise_prints_its_guarantee(capsys, tmp_path):
    pytest.importorskip("dp_accounting")
    private = ["--clip", "1", "--noise", "gaussian", "--noise-std", "1"]
    code, out, _ = call(capsys, "vision", "run", "--out", tmp_path / "run", *TINY,
                        "--method", "fedavg", "--norm", "group", *private)  # fmt: skip
    assert code == 0
    found = json.loads((tmp_path / "run" / "run.json").read_text())["privacy"]
    assert f"({found['epsilon']:.3g}, 1e-05)-differential privacy of a client's training" in out


def test_help_describes_every_option(capsys):
    code, out, _ = call(capsys, "vision", "run", "--help", "--partition", "dirichlet")
    assert code == 0
    assert "Number of" in out
    assert "--min-samples" in out
    assert "--ways" not in out


@pytest.mark.parametrize("what", ["methods", "data", "partitions", "models"])
def test_lists(capsys, what):
    code, out, _ = call(capsys, "vision", "list", what)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    known = {"methods": "pfpl", "data": "usps", "partitions": "n-way", "models": "resnet18"}
    assert known[what] in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--method", "fuels"], "unknown method 'fuels'"),
        (["--model", "vgg"], "unknown model 'vgg'"),
        (["--partition", "fair"], "unknown partition 'fair'"),
        (["--data", "mnst"], "data set 'mnst'"),
        (["--data", "mnist"], "mnist"),
        (["--alpha", "2"], "alpha is 2.0"),
        (["--ways", "30"], "ways is 30"),
        (
            ["--backbone", "x"],
            "'--backbone' here",
        ),
    ],
)
def test_mistakes_give_one_line(capsys, tmp_path, args, message):
    code, _, err = call(capsys, "vision", "run", "--out", tmp_path / "r", *TINY, *args)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "r" / "run.json").exists()


def test_an_unknown_option_names_those_that_others_depend_on(capsys):
    for command, message in (
        (["vision", "divide"], "No such option '--xyzq' here; it may need another --partition."),
        (["simulate"], "No such option '--xyzq'."),
    ):
        code, _, err = call(capsys, *command, "--xyzq", "1")
        assert code == 2
        assert message in err


def test_bench_knows_both_kinds(capsys, write_grid, tmp_path):
    code, _, err = call(capsys, "bench", write_grid(), "--out", tmp_path, "--service", "sms")
    assert code == 2
    assert "no --service" in err


def test_a_division_is_drawn_before_training(capsys, tmp_path):
    few = ["--clients", "3", "--size", "8"]
    code, out, _ = call(capsys, "vision", "divide", "--out", tmp_path / "who.png", *few)
    assert code == 0
    assert "1797 images of digits8x8, 3" in out
    one = ["--clients", "1", "--ways", "9", "--spread", "0"]
    _, out, _ = call(capsys, "vision", "divide", "--out", tmp_path / "who.csv", *one)
    (left_out,) = re.findall(r"^classes without training images on any client: (\d)$", out, re.M)
    told = {line.split(",")[3] for line in (tmp_path / "who.csv").read_text().splitlines()[1:]}
    assert told == set("0123456789") - {left_out}
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")
    stream = ["--partition", "gldp-shards", "--stages", "2", "--shards", "2"]
    code, out, _ = call(capsys, "vision", "divide", "--out", tmp_path / "who.csv", *few, *stream)
    assert code == 0
    lines = (tmp_path / "who.csv").read_text().splitlines()
    assert lines[0] == "client,part,stage,domain,class,samples"
    assert "no client" not in out
    code, _, err = call(capsys, "vision", "divide", "--out", tmp_path / "x.png", "--ways", "11")
    assert code == 2
    assert "has 10 classes" in err


def test_finished_runs_are_compared(capsys, outcome, tmp_path):
    _, runs = outcome
    code, out, _ = call(capsys, "compare", runs, "--reference", "solo", "--out", tmp_path)
    assert code == 0
    assert "digits8x8, n = 2" in out
    assert "classes, solo " in out
    table = (tmp_path / "comparison.csv").read_text().splitlines()
    assert len(table) == 1 + 2 * 3  # Two scenarios; solo, and PFPL's two models.
    assert "## digits8x8, n = 3" in (tmp_path / "comparison.md").read_text()
    assert "toprule" in (tmp_path / "comparison.tex").read_text()
    for wrong, message in (
        (["--metric", "mse"], "is a run of images, which has no --metric"),
        (["--reference", "nobody"], "unknown reference 'nobody'"),
    ):
        code, _, err = call(capsys, "compare", runs, *wrong)
        assert code == 2
        assert message in err


def test_image_runs_have_their_tables_on_a_page(capsys, outcome, tmp_path):
    _, runs = outcome
    out = tmp_path / "page.html"
    code, said, _ = call(capsys, "report", runs, "--reference", "solo", "--out", out)
    assert code == 0
    assert said.startswith(f"{out}: 8 runs, ")
    page = out.read_text()
    assert "<h1>Images compared</h1>" in page
    assert "<p>2 tasks, written" in page
    assert page.count(">digits8x8, n = 3</h2>") == 1
    assert "choosing from all classes, solo " in page
    assert page.count("Leaderboard, the highest accuracy first</caption>") == 2
    assert page.count("data:image/png") == 2
    assert "1,797 of 8 × 8 pixels" in page
    again = (
        "stforecast vision run --method pfpl --size 8 --clients 3 --share 0.3 --ways 2 --rounds 2"
    )
    assert f"{again} --batch-size 64 --workers 1 --alpha 0.3 " in page


@pytest.mark.repeats
def test_a_benchmark_of_images_writes_its_page(capsys, write_grid, tmp_path):
    code, out, err = call(capsys, "bench", write_grid(), "--out", tmp_path)
    assert code == 0
    assert f"{tmp_path / 'report.html'}" in out
    assert "<h1>tiny</h1>" in (tmp_path / "report.html").read_text()
    assert "not written" not in err


@pytest.mark.repeats
def test_runs_that_do_not_compare_stand_apart_on_a_page(capsys, tmp_path):
    for clients in ("3", "4"):
        words = [*TINY, "--method", "solo", "--label", clients, "--clients", clients]
        assert call(capsys, "vision", "run", "--out", tmp_path / clients, *words)[0] == 0
    page = tmp_path / "page.html"
    assert call(capsys, "report", tmp_path, "--out", page)[0] == 0
    text = page.read_text()
    assert all(f"{n} clients, " in text for n in ("3", "4"))
