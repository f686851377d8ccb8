"""Methods of the core that use keys or networks on features, on images."""

import pytest
from recent_methods import RECENT

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
