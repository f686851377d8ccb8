"""Methods of the core that use keys or networks on features, on images."""

from functools import partial

import pytest
import torch
from recent_methods import RECENT

from stforecast.federated.methods.fedgh import FedGH, FedGHOptions
from vision.methods import METHODS


@pytest.mark.slow
@pytest.mark.parametrize("build", ["stacked", "module"])
@pytest.mark.parametrize("name", RECENT)
def test_they_learn_to_classify(federate, name, build):
    federation = federate(METHODS[name], (8, 12, 13), build=build, rounds=12, lr=0.05)
    untrained = federation.evaluate(federation.validation)
    federation.run()
    assert federation.best.round > 1
    assert federation.evaluate(federation.validation, federation.best) < untrained


def test_a_header_learns_the_class_of_a_mean_by_hand(federate):
    """Equal logits of four classes: R = 2 of class 1 has the gradients 1/4 and -3/4, times R."""
    options = FedGHOptions(server_epochs=1, server_lr=0.1)
    f = federate(partial(FedGH, options=options), (4, 4))
    server = {n: torch.zeros_like(t) for n, t in f.state.server.items()}
    prototypes = torch.zeros(2, 4, 5)
    prototypes[0, 1, 0] = 2.0
    known = torch.zeros(2, 4, dtype=torch.bool)
    known[0, 1] = True
    after = f.method.aggregate(server, None, {"prototypes": prototypes, "known": known})
    expected = torch.zeros(5, 4)
    expected[0] = torch.tensor([-0.05, 0.15, -0.05, -0.05])
    torch.testing.assert_close(after["head.weight"], expected)
    torch.testing.assert_close(after["head.bias"], expected[0] / 2)


def test_on_images_the_header_needs_no_targets(federate):
    f, sent = federate(FedGH, (8, 12)), []
    upload = f.method.upload
    f.method.upload = lambda cohort: sent.append(upload(cohort)) or sent[-1]
    f.run_round()
    assert {tuple(message) for message in sent} == {("prototypes", "known")}
