import torch

from stforecast.methods import METHODS

Solo = METHODS["solo"]


def test_nothing_is_sent(federate):
    federation = federate(Solo)
    federation.run()
    assert [(r.bytes_down, r.bytes_up) for r in federation.reports] == [(0, 0)] * 3
    assert federation.state.server == {}


def test_a_client_is_trained_as_if_there_were_no_others(federate):
    together = federate(Solo, (8, 12, 8))
    together.run()
    for i, size in enumerate((8, 12, 8)):
        alone = federate(Solo, (size,))
        alone.train.tensors.update(
            {name: t[i : i + 1, :size] for name, t in together.train.tensors.items()}
        )
        alone.run()
        for name, t in alone.state.clients.params.items():
            torch.testing.assert_close(together.state.clients.params[name][i : i + 1], t)
