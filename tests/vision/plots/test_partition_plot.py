"""The figure of a partition, read back from its axes."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex

from stforecast.bench.drawing import save_figure
from vision.partition import PARTITIONS
from vision.partition.base import Partition
from vision.plots.partition import division


def partition(parts, images):
    return division(parts.table(images), images.class_names, images.domain_names, len(parts.train))


def markers(ax):
    """Colour, position and area of every marker."""
    return [
        (to_hex(c.get_facecolor()[0]).upper(), *xy, area)
        for c in ax.collections
        if len(c.get_offsets())
        for xy, area in zip(c.get_offsets().tolist(), c.get_sizes(), strict=True)
    ]


def ids(*values):
    return torch.tensor(values)


def test_areas_and_colours_of_one_domain_a_client(grid):
    images = grid(train=10, test=4)
    # Ink: ids 0-41, of which 0-9 are a's, 14-23 b's; oil: 42-83, of which 70-79 are c's.
    parts = Partition((ids(0, 1, 2, 3, 14), ids(70, 71)), (ids(10), ids(80, 81, 82)))
    fig = partition(parts, images)
    train, test = fig.axes
    (_, x, y, largest), *others = markers(train)
    assert (x, y) == (0, 0)
    found = [(c, x, y, round(4 * a / largest)) for c, x, y, a in others]
    assert found == [("#0072B2", 1, 0, 1), ("#D55E00", 2, 1, 2)]
    assert [m[:3] for m in markers(test)] == [("#0072B2", 0, 0), ("#D55E00", 2, 1)]
    assert train.get_title() == "training: 7 samples, largest marker 4"
    assert test.get_title() == "test: 4 samples, largest marker 3"
    assert [t.get_text() for t in train.get_yticklabels()] == ["ink  0", "oil  1"]
    assert [t.get_text() for t in train.get_xticklabels()] == ["a", "b", "c"]
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["ink", "oil"]


def test_domains_within_a_cell_stand_apart(grid):
    images = grid(train=10, test=4)
    parts = Partition((ids(0, 1, 42),), (ids(10, 52),))
    ax = partition(parts, images).axes[0]
    (_, x1, y1, _), (_, x2, y2, _) = markers(ax)
    assert (x1, x2) == (-0.25, 0.25)
    assert y1 == y2 == 0
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0"]


@pytest.mark.parametrize(
    ("classes", "domains"),
    [
        (3, ("ink", "oil")),
        pytest.param(12, tuple("ABCDEFGHI"), marks=pytest.mark.repeats),
    ],
)
def test_markers_keep_within_their_cells(grid, classes, domains):
    images = grid(classes=classes, domains=domains)
    fig = partition(PARTITIONS["iid"](clients=6).split(images), images)
    fig.draw_without_rendering()
    for ax in fig.axes:
        sides = np.sqrt([m[3] for m in markers(ax)]) * fig.dpi / 72
        places = ax.transData.transform([m[1:3] for m in markers(ax)])
        for (x, y), side in zip(places, sides, strict=True):
            others = np.abs(places - (x, y)).max(1)
            assert np.sort(others)[1] >= side


@pytest.mark.repeats
def test_one_domain_needs_no_legend_and_many_classes_stack(grid):
    images = grid(domains=("ink",), classes=3)
    fig = partition(PARTITIONS["iid"](clients=2).split(images), images)
    assert fig.legends == []
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == ["0", "1"]
    many = images.__class__(
        **{**vars(images), "class_names": tuple(f"class {i}" for i in range(21))}
    )
    fig = partition(PARTITIONS["iid"](clients=2).split(many), many)
    top, bottom = (ax.get_position() for ax in fig.axes)
    assert top.y0 > bottom.y1


@pytest.mark.repeats
def test_names_are_no_formulas(tmp_path):
    name = r"$\frac{1$"
    rows = [
        {"client": 0, "part": part, "domain": domain, "class": cls, "samples": 2}
        for part in ("train", "test")
        for domain in (name, "other")
        for cls in (name, "other")
    ]
    fig = division(pd.DataFrame(rows), (name, "other"), (name, "other"), 1)
    assert save_figure(fig, tmp_path / "figure.svg").exists()


def test_characters_that_the_font_lacks_are_told_once(grid, tmp_path, caplog, recwarn):
    images = dataclasses.replace(grid(train=10, test=4), class_names=("a", "犬", "猫"))
    save_figure(partition(Partition((ids(0, 14),), (ids(10),)), images), tmp_path / "a.png")
    (told,) = caplog.messages
    assert told.startswith("the figure shows boxes for 犬 猫, which its font lacks; name a font")
    assert not recwarn.list
