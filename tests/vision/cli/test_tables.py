"""What the table says of streams of tasks."""

import numpy as np
import pytest

from stforecast.bench.tables import in_markdown
from vision import learner
from vision.cli.compare import rows_by_data
from vision.cli.tables import accuracy_tables, image_summary
from vision.results import ImageRun, run_images
from vision.streams.measures import forgetting, known, spatial_retention, temporal_retention

SETTINGS = {
    "partition": "fedta-tasks", "clients": 2, "stages": 2, "task_classes": 3, "private_classes": 2,
    "size": 8, "channels": 4, "feature_size": 8, "rounds": 1, "train_shots": 20, "test_shots": 10,
    "lr": 0.05, "workers": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_images("fedavg", tmp_path_factory.mktemp("runs") / "fedavg", SETTINGS)


def tables(parts):
    """Each table: its rows by method, or by method and mask where it has masks."""
    return [
        {tuple(row[k] for k in ("method", "choosing from") if k in row): row for row in part}
        for part in parts
        if not isinstance(part, str)
    ]


def test_a_stream_has_what_is_known_after_each_stage_and_what_is_kept(finished):
    accuracies, kept, _ = tables(accuracy_tables([finished], {}))
    stages = finished.stages()
    for name, view in (("fedavg", "global"), ("fedavg (trained)", "trained")):
        told = 100 * finished.accuracy("last", view, "task classes")
        assert accuracies[name,]["task classes, last"] == f"{told:.2f}"
        for mask in ("all classes", "task classes"):
            row = kept[name, mask]
            after = [f"{100 * a:.1f}" for a in known(stages, view, mask)]
            assert row["after each stage"] == " / ".join(after)
            assert row["forgetting"] == f"{100 * forgetting(stages, view, mask)[0]:.2f}"
    for mask in ("all classes", "task classes"):
        shared = spatial_retention(stages, "global", "trained", mask)[1]
        own = temporal_retention(stages, "trained", mask)[1]
        assert kept["fedavg", mask]["KR_s"] == f"{100 * shared:.2f}"
        assert kept["fedavg (trained)", mask]["KR_t"] == f"{100 * own:.2f}"
        assert kept["fedavg", mask]["KR_t"] == kept["fedavg (trained)", mask]["KR_s"] == "-"
    assert "task classes" in image_summary(finished)


def test_a_run_without_a_mask_leaves_its_column_out(finished):
    about = {**finished.about, "masks": ["all classes", "own classes"]}
    other = ImageRun(finished.folder, {**about, "label": "other"})
    accuracies, kept, _ = tables(accuracy_tables([finished, other], {}))
    assert "own classes, last" in accuracies["other",]
    assert "task classes, last" not in accuracies["other",]
    assert {mask for _, mask in kept} == {"all classes"}


def test_the_mean_is_headed_by_the_number_of_rounds_in_it(tmp_path):
    """Of two stages of three rounds, the second and the third round of the last one."""
    settings = {**SETTINGS, "rounds": 3, "test_every": 2}
    run = run_images("solo", tmp_path, settings)
    assert len(run.rounds()) == 6
    assert "mean of last 2" in image_summary(run)
    judged = run.rounds()["accuracy (personal, all classes)"].tolist()[-2:]
    assert f"{100 * sum(judged) / 2:.2f} %" in image_summary(run)


def test_without_stages_in_turn_nothing_is_forgotten(tmp_path):
    settings = {**SETTINGS, "stage_order": "inside"}
    text = in_markdown(accuracy_tables([run_images("solo", tmp_path, settings)], {}))
    assert "forgetting" not in text
    assert "each stage" not in text


def test_runs_of_other_clients_or_images_are_no_rows_of_one_table(finished):
    name, settings = finished.data_name, finished.settings
    fewer = ImageRun(finished.folder / "a", {**finished.about, "clients": 1})
    large = {**finished.about, "settings": {**settings, "size": 16}}
    larger = ImageRun(finished.folder / "b", large)
    assert list(rows_by_data([finished])) == [name]
    assert list(rows_by_data([finished, fewer, larger])) == [
        f"{name}, 2 clients, 8 × 8 pixels",
        f"{name}, 1 client, 8 × 8 pixels",
        f"{name}, 2 clients, 16 × 16 pixels",
    ]


def test_other_images_of_the_same_name_stand_apart(finished, caplog):
    def alike(folder, content, images, **settings):
        settings = {**finished.settings, "images": images, **settings}
        about = {**finished.about, "content": content, "settings": settings}
        return ImageRun(finished.folder / folder, about)

    name, here = finished.data_name, f"{finished.data_name}, 2 clients, 8 × 8 pixels, from"
    one, other = alike("a", "x", "cats/data"), alike("b", "y", "dogs/data")
    assert list(rows_by_data([one, other])) == [f"{here} cats/data", f"{here} dogs/data"]
    assert list(rows_by_data([one, alike("c", "x", "moved/data")])) == [name]
    # A long tail is drawn anew for each seed.
    tails = [alike(str(i), str(i), "cats/data", imbalance=2.0, seed=i) for i in range(2)]
    assert list(rows_by_data(tails)) == [name]
    assert not caplog.messages
    assert list(rows_by_data([one, alike("d", "y", "cats/data")])) == [name]
    (told,) = caplog.messages
    assert "different images of cats/data, which have changed in between; run one" in told


def run_of_npz(tmp_path, method, names):
    """A run on 20 images of each class in a file a.npz."""
    n = 20 * len(names)
    pixels = np.random.default_rng(1).integers(0, 255, (n, 8, 8), np.uint8)
    labels = np.arange(n) % len(names)
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels, class_names=names)
    settings = {
        "data": "npz", "images": str(tmp_path / "a.npz"), "size": 8, "partition": "iid",
        "clients": 2, "rounds": 1, "channels": 4, "workers": 1,
    }  # fmt: skip
    return run_images(method, tmp_path / "run", settings)


def test_classes_may_be_named_like_missing_values(tmp_path):
    """Pandas reads NA, None, nan and null as missing values, if it may."""
    names = ["NA", "None", "nan", "null"]
    run = run_of_npz(tmp_path, "solo", names)
    assert set(run.metrics()["class"]) == {"all", *names}
    assert run.partition().groupby(["part", "class"])["samples"].sum().to_dict() == {
        (part, name): n for part, n in (("train", 16), ("test", 8)) for name in names
    }


def test_images_that_have_changed_since_the_training_are_told(tmp_path, caplog):
    run = run_of_npz(tmp_path, "pfpl", ["a", "b"])
    run.images()
    assert not caplog.messages
    with np.load(tmp_path / "a.npz") as found:
        fewer = {name: t if name == "class_names" else t[1:] for name, t in found.items()}
    np.savez(tmp_path / "a.npz", **fewer)
    learner._load.cache_clear()
    run.images()
    (told,) = caplog.messages
    assert told.startswith(f"{run.folder}: its images have changed since the training (they were")
    assert "40, now 39" in told
