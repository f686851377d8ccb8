"""Runs of a kind that neither forecasts nor learns images."""

import pandas as pd
import pytest

from stforecast.federated.runs.run_folder import Run


class Throw(Run):
    """A throw of dice."""

    command = "throw"
    no_difference = Run.no_difference | {"table"}

    def facts(self):
        return {"data": self.about["data"]}

    def metrics(self):
        return pd.DataFrame({"points": [7]})

    def rounds(self):
        return pd.DataFrame()


@pytest.fixture
def throw(tmp_path):
    """Makes runs: `throw("fuels", tau=0.1)`."""
    made = []

    def make(method="fair", *, label=None, data="dice", **settings):
        made.append(method)
        about = {"settings": {"method": method, "seed": 1, **settings}, "data": data}
        return Throw(tmp_path / str(len(made)), about | ({"label": label} if label else {}))

    return make
