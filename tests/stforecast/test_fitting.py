import numpy as np
import pandas as pd
import pytest

from stforecast import Forecaster

WINDOW = {"closeness": 3, "periods": 0}


@pytest.mark.parametrize("method", ["historical_average", "ridge", "fedavg"])
def test_a_sliding_window_learns_nothing_from_before_it(table, tiny, method):
    """Values before the training part and its inputs change neither scaler nor model."""
    first, validation, test, end = (table.index[24 * day] for day in (3, 6, 7, 9))
    split = f"dates:{first}/{validation},{validation}/{test},{test}/{end}"
    changed = table.copy()
    changed.iloc[: 24 * 3 - 3] = np.random.default_rng(0).uniform(1, 99, (24 * 3 - 3, 3))
    settings = {**(tiny if method == "fedavg" else {}), **WINDOW, "split": split}
    forecasters = [Forecaster(method, **settings).fit(data) for data in (table, changed)]
    before, after = (f.predict(table.iloc[: 24 * 7]) for f in forecasters)
    pd.testing.assert_frame_equal(before, after)
    scalers = (f.scaler for f in forecasters)
    np.testing.assert_array_equal(*(scaler.mean for scaler in scalers))
    assert forecasters[0].parts()["training"]["first"] == str(table.index[24 * 3])
