import base64
import gzip
import json

import numpy as np

from stforecast.report.tables import LEVELS, Arrays, as_json, packed


def unpacked(arrays, place):
    """The values of `Arrays.rows`, read as the page reads them."""
    block, (rows, columns) = arrays.bytes(), place["shape"]
    planes = np.frombuffer(block, np.uint8, 2 * rows * columns, place["at"])
    high, low8 = planes.reshape(2, rows, columns).astype(int)
    low, step = (
        np.frombuffer(block, "<f4", rows, place[name]["at"])[:, None] for name in ("low", "step")
    )
    level = 256 * high + low8
    return np.where(level == LEVELS + 1, np.nan, low + step * level)


def test_rows_are_exact_to_half_a_level_of_their_own_range():
    values = np.random.default_rng(0).normal(size=(3, 50)) * [[1e-6], [1.0], [1e6]]
    arrays = Arrays()
    arrays.floats(np.arange(3))  # others before it
    found = unpacked(arrays, arrays.rows(values))
    reach = np.ptp(values, axis=1, keepdims=True)
    assert (abs(found - values) <= 0.51 * reach / LEVELS + 1e-6 * abs(values)).all()


def test_values_that_are_not_finite_are_missing():
    values = np.array([[1.0, np.nan, 3.0], [np.inf, -np.inf, 2.0], [np.nan, np.nan, np.nan]])
    arrays = Arrays()
    found = unpacked(arrays, arrays.rows(values))
    assert (np.isfinite(found) == np.isfinite(values)).all()
    np.testing.assert_allclose(found[:2][np.isfinite(values[:2])], [1.0, 3.0, 2.0])


def test_arrays_begin_where_a_view_of_floats_may():
    arrays = Arrays()
    arrays.rows(np.ones((1, 3)))
    assert arrays.floats(np.ones(2))["at"] % 4 == 0


def test_json_has_null_for_what_is_not_finite():
    found = json.loads(as_json({"a": np.array([1.23456789, np.nan]), "b": [float("inf"), 2]}))
    assert found == {"a": [1.23457, None], "b": [None, 2]}


def test_packed_text_is_plain_ascii_and_comes_back():
    text = "</script><b>& ü"
    found = packed(text)
    assert "<" not in found
    assert gzip.decompress(base64.b64decode(found)).decode() == text
