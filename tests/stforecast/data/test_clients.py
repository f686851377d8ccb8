"""Which cells are a client: every form of the setting, and what is wrong with each."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.data.clients import Partition, one_per_cell, partition_cells
from stforecast.data.series import as_series
from stforecast.federated.core.data import ClientData
from stforecast.forecasting.config import resolve


@pytest.fixture
def town(cube):
    """The small town, with places in a row from west to east and an operator for each cell."""
    return cube[["internet"]].assign_coords(
        lon=("cell", [9.0, 9.1, 9.5]),
        lat=("cell", [45.0, 45.0, 45.2]),
        operator=("cell", ["Two", "One", "Two"]),
    )


def divided(cube, text):
    return partition_cells(text, as_series(cube))


def written(path, *lines):
    path.write_text("\n".join(["cell,client", *lines]))
    return str(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cell", {"11": ["11"], "22": ["22"], "33": ["33"]}),
        ("all", {"all": ["11", "22", "33"]}),
        ("operator", {"Two": ["11", "33"], "One": ["22"]}),
        ("kmeans:2", {"district 1": ["11", "22"], "district 2": ["33"]}),
        ("grid:1x2", {"tile 1-1": ["11", "22"], "tile 1-2": ["33"]}),
        ("grid:2x1", {"tile 2-1": ["11", "22"], "tile 1-1": ["33"]}),
    ],
)
def test_every_form_names_the_clients_and_their_cells(town, text, expected):
    found = divided(town, text)
    cells = {
        name: [str(c) for c in town["cell"].to_numpy()[own]]
        for name, own in zip(found.names, found.cells, strict=True)
    }
    assert cells == expected
    assert found.sizes.tolist() == [len(own) for own in expected.values()]


def test_a_file_is_read_whatever_the_order_of_its_lines(town, tmp_path):
    path = written(tmp_path / "owners.csv", "33, B", "11,A ", "22,B")
    assert divided(town, path).labels == ["A", "B", "B"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["11,A", "22,A"], r"no line for 1 cell of a small town: 33"),
        (["11,A", "22,A", "33,B", "44,B"], r"1 cell that a small town does not have: 44"),
        (["11,A", "22,A", "33,B", "11,B"], r"more than one line of cell 11; keep one"),
        (["11,A", "22,", "33,B"], r"cell 22 has no client"),
    ],
)
def test_a_file_that_does_not_fit_the_cells_is_refused(town, tmp_path, lines, message):
    with pytest.raises(InputError, match=message):
        divided(town, written(tmp_path / "owners.csv", *lines))


def test_a_file_without_the_columns_or_of_another_kind_is_refused(town, tmp_path):
    (tmp_path / "a.csv").write_text("cell,owner\n11,A\n")
    with pytest.raises(InputError, match=r"'client', .*cell, owner; .*CSV"):
        divided(town, str(tmp_path / "a.csv"))
    with pytest.raises(InputError, match="no file"):
        divided(town, str(tmp_path / "nowhere.csv"))
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="found a folder"):
        divided(town, str(tmp_path / "folder.csv"))


@pytest.mark.parametrize("text", ["", "kmeans", "kmeans:0", "kmeans:x", "grid:4", "grid:0x3"])
def test_a_text_of_no_known_form_is_refused_before_data_are_read(text):
    with pytest.raises(InputError, match="cell, all, "):
        resolve("fedavg", clients=text)


def test_a_column_must_exist_and_have_a_value_for_each_cell(town):
    with pytest.raises(InputError, match=r"column of .*'operator'"):
        divided(town, "operators")
    town["operator"].values[1] = ""
    with pytest.raises(InputError, match=r"22 has no client"):
        divided(town, "operator")


@pytest.mark.parametrize("text", ["kmeans:2", "grid:2x2"])
def test_places_are_needed_for_districts_and_tiles(town, text):
    with pytest.raises(InputError, match="no locations"):
        divided(town.drop_vars(["lon", "lat"]), text)
    town["lon"].values[1] = np.nan
    with pytest.raises(InputError, match=r"cell 22.*location"):
        divided(town, text)


def test_more_districts_than_places_are_refused(town):
    with pytest.raises(InputError, match=r"kmeans:4.*3 places"):
        divided(town, "kmeans:4")


def test_empty_tiles_are_left_out_and_said(town, caplog):
    with caplog.at_level(logging.INFO):
        assert len(divided(town, "grid:2x3")) == 2
    assert mentions(caplog.text, "4 of 6 tiles", "2 clients")


def test_columns_follow_the_cells_that_are_selected(town):
    chosen = as_series(town).select(np.array([33, 22]))
    assert partition_cells("operator", chosen).labels == ["Two", "One"]


def test_joining_orders_samples_by_time_and_scattering_undoes_it():
    parts = Partition.from_labels(["b", "a", "b"])
    x = torch.arange(24.0).view(3, 4, 2)
    data = parts.join(ClientData({"x": x, "sample": torch.arange(4).expand(3, -1)}, sizes(3, 4)))
    assert data.sizes.tolist() == [8, 4]
    assert data.group_sizes.tolist() == [2, 1]
    assert data.tensors["x"][0, :4].tolist() == [x[i, t].tolist() for t in (0, 1) for i in (0, 2)]
    assert data.tensors["sample"][0].unique().tolist() == list(range(8))
    out = torch.zeros_like(x)
    for ids in data.cohorts(2):
        some = data.take(ids)
        parts.scatter(some.tensors["x"][:, : int(some.sizes[0])], ids, out)
    assert torch.equal(out, x)


def test_one_cell_a_client_changes_nothing():
    data = ClientData({"x": torch.zeros(2, 3, 1)}, sizes(2, 3))
    assert one_per_cell(["a", "b"]).join(data) is data


def test_cells_that_are_not_aligned_in_time_cannot_be_joined():
    data = ClientData({"x": torch.zeros(2, 3, 1)}, torch.tensor([3, 2]))
    with pytest.raises(ValueError, match="not aligned"):
        Partition.from_labels(["all", "all"]).join(data)


def test_roads_between_clients_are_counted_once_each_way():
    roads = np.array([[1.0, 2.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    assert Partition.from_labels(["a", "a", "b"]).cut(roads) == {
        "roads": 3, "cut": 2, "cut_weight": 0.5,
    }  # fmt: skip
    assert Partition.from_labels(["a"] * 3).cut(roads)["cut"] == 0
    assert one_per_cell(range(2)).cut(np.eye(2)) == {"roads": 0, "cut": 0, "cut_weight": 0.0}


def test_numbers_name_clients_too(table):
    series = as_series(table)
    zones = np.array([2, 1, 2])
    object.__setattr__(series, "columns", {"zone": pd.Series(zones).to_numpy()})
    assert partition_cells("zone", series).names == ("2", "1")


def sizes(n, samples):
    return torch.full((n,), samples)
