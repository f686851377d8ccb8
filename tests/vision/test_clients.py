"""What the federated core gets of an image set."""

import pytest
import torch

from data_prep.base.errors import InputError
from vision.task import AMONG, Classification, among_own_classes, stacked_images


def test_clients_are_padded_at_the_end(grid):
    images = grid()
    data = stacked_images(
        images, [torch.tensor([3, 83]), torch.tensor([50]), torch.tensor([1, 2, 20])]
    )
    assert data.sizes.tolist() == [2, 1, 3]
    assert data.tensors["x"].shape == (3, 3, 1, 2, 2)
    assert data.tensors["x"].dtype == torch.uint8
    assert data.tensors["x"][:, :, 0, 1, 1].tolist() == [[3, 83, 0], [50, 0, 0], [1, 2, 20]]
    assert data.tensors["y"].tolist() == [[0, 2, 0], [0, 0, 0], [0, 0, 1]]
    assert data.tensors["domain"].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_a_client_may_have_no_images(grid):
    data = stacked_images(grid(), [torch.tensor([5]), torch.tensor([], dtype=torch.int64)])
    assert data.sizes.tolist() == [1, 0]
    assert data.tensors["x"][1].sum() == 0


def test_there_must_be_a_client(grid):
    with pytest.raises(InputError, match="no clients"):
        stacked_images(grid(), [])


def test_predictions_among_own_classes_leave_padding_out(grid):
    data = stacked_images(grid(), [torch.tensor([20, 83]), torch.tensor([20])])
    among = among_own_classes(data, 4)
    assert among.tensors[AMONG][0].tolist() == [[False, True, True, False]] * 2
    assert among.tensors[AMONG][1, 0].tolist() == [False, True, False, False]
    one = {name: t[:1] for name, t in among.tensors.items()}
    loss = Classification(4).loss(torch.zeros(1, 2, 4), one)
    torch.testing.assert_close(loss, torch.tensor([2.0]).log())
