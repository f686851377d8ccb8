"""Masks that cancel, shares of secrets, and sums of fixed-point integers."""

from fractions import Fraction
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.base.errors import InputError
from stforecast.federated.uploads import masking as sums
from stforecast.federated.uploads.masking import (
    KEY,
    PRIME,
    SHARE,
    agreed,
    mask_of,
    masked,
    new_key,
    pair_mask,
    public,
    rejoin,
    seal,
    split,
    unseal,
)

secrets = st.binary(min_size=KEY, max_size=KEY)


def test_the_field_is_one():
    """By Fermat's test to some bases; only primes have an inverse of every number."""
    assert all(pow(a, PRIME - 1, PRIME) == 1 for a in range(2, 50))
    assert PRIME > 2 ** (8 * KEY)


@settings(max_examples=30)
@given(secret=secrets, threshold=st.integers(2, 5), holders=st.sets(st.integers(0, 999), min_size=5,
       max_size=7))  # fmt: skip
def test_enough_shares_give_the_secret(secret, threshold, holders):
    shares = split(secret, holders, threshold)
    assert {len(s) for s in shares.values()} == {SHARE}
    for some in list(combinations(sorted(holders), threshold))[:5]:
        assert rejoin({i: shares[i] for i in some}) == secret


def test_fewer_shares_fit_every_secret():
    """Two of three shares: for any other secret there is a third share that fits them."""
    shares = split(b"s" * KEY, range(3), threshold=3)
    two = {i: int.from_bytes(shares[i]) for i in (0, 1)}
    for other in (bytes(KEY), b"\xff" * KEY):
        # The parabola through the secret at 0 and the two shares at 1 and 2, at 3.
        third = (int.from_bytes(other) - 3 * two[0] + 3 * two[1]) % PRIME
        assert rejoin({0: shares[0], 1: shares[1], 2: third.to_bytes(SHARE)}) == other


def test_wrong_shares_give_another_secret_or_none():
    shares = split(b"s" * KEY, range(2), threshold=2)
    assert rejoin({0: shares[0], 1: b"\0" * SHARE}) != b"s" * KEY
    with pytest.raises(ValueError, match="shares"):
        rejoin({0: (PRIME - 1).to_bytes(SHARE), 1: (PRIME - 1).to_bytes(SHARE)})


def test_two_keys_agree_and_others_do_not():
    a, b, c = new_key(), new_key(), new_key()
    assert agreed(a, public(b), "x") == agreed(b, public(a), "x")
    assert agreed(a, public(b), "x") != agreed(b, public(a), "y")
    assert agreed(a, public(c), "x") != agreed(b, public(c), "x")
    with pytest.raises(ValueError):
        agreed(a, bytes(32), "x")


def test_what_was_sealed_is_read_by_the_same_key_only():
    key = new_key()
    text = seal(key, b"shares")
    assert unseal(key, text) == b"shares"
    assert unseal(new_key(), text) is None
    assert unseal(key, text[:-1] + bytes([text[-1] ^ 1])) is None
    assert unseal(key, b"") is None


def test_pairs_of_masks_cancel_and_a_mask_is_not_zero():
    a, b = new_key(), new_key()
    one, other = pair_mask(3, a, 8, public(b), "s", 100), pair_mask(8, b, 3, public(a), "s", 100)
    assert torch.equal(one + other, torch.zeros(100, dtype=torch.int64))
    assert one.unique().numel() == 100
    assert not torch.equal(one, pair_mask(3, a, 8, public(b), "t", 100))


def test_masks_look_uniform():
    """The mean of 2 · 10⁶ bits deviates by less than five standard deviations."""
    bits = torch.stack([(mask_of(new_key(), 2**15) >> i) & 1 for i in range(64)]).double()
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / bits.numel() ** 0.5


@settings(max_examples=30)
@given(st.integers(2, 5), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_masked_vectors_have_the_sum_of_the_vectors_and_the_masks_of_their_own(n, row):
    keys, seeds = [new_key() for _ in range(n)], [new_key() for _ in range(n)]
    vectors = [torch.tensor(row) + i for i in range(n)]
    total = torch.zeros(len(row), dtype=torch.int64)
    for i, vector in enumerate(vectors):
        others = {j: public(keys[j]) for j in range(n) if j != i}
        sent = masked(vector, i, seeds[i], keys[i], others, "s")
        assert not torch.equal(sent, vector)
        total += sent - mask_of(seeds[i], len(row))
    assert torch.equal(total, sum(vectors))


SHAPES = {"a": [2], "b": [], "c": [1, 2]}


MOST = 2.0 ** (63 - sums.FRACTION) / 6
"""Limit of the values of six members."""

VALUES = st.floats(-1e6, 1e6) | st.floats(-MOST, MOST, exclude_min=True, exclude_max=True)


@settings(max_examples=100)
@given(st.lists(st.lists(VALUES, min_size=5, max_size=5), min_size=1, max_size=6))
def test_a_sum_is_exact_to_the_resolution_and_that_of_doubles(rows):
    """Against exact fractions, within the bound that the module gives."""
    total = 0
    for row in rows:
        values = torch.tensor(row, dtype=torch.float64)
        named = {"a": values[:2], "b": values[2], "c": values[3:].view(1, 2)}
        total = total + sums.to_vector(named, SHAPES, len(rows))
    found = sums.from_vector(total, SHAPES)
    assert {name: list(t.shape) for name, t in found.items()} == SHAPES
    flat = [*found["a"].tolist(), found["b"].item(), *found["c"].flatten().tolist()]
    for value, column in zip(flat, zip(*rows, strict=True), strict=True):
        exact = sum(map(Fraction, column))
        rounding = abs(Fraction(value)) / 2**53
        assert (
            abs(Fraction(value) - exact) <= Fraction(len(rows), 2 ** (sums.FRACTION + 1)) + rounding
        )


def test_the_bound_is_reached():
    half = 2.0 ** -(sums.FRACTION + 1)
    vector = 4 * sums.to_vector({"b": torch.tensor(3 * half)}, {"b": []}, 4)
    error = sums.from_vector(vector, {"b": []})["b"].item() - 12 * half
    assert error == 4 * half


def test_near_the_limit_the_resolution_of_doubles_is_part_of_the_error():
    """With 53 bits, 2³⁵ has neighbours at a distance of 2⁻¹⁸."""
    values = [torch.tensor(x, dtype=torch.float64) for x in (2.0**34 - 2.0**-18, 0.75 * 2.0**-18)]
    vector = sum(sums.to_vector({"b": x}, {"b": []}, 2) for x in values)
    error = sums.from_vector(vector, {"b": []})["b"].item() - (2.0**34 - 2.0**-18)
    assert abs(error - 0.75 * 2.0**-18) > 2 / 2 ** (sums.FRACTION + 1)


def test_the_largest_values_do_not_overflow_and_larger_ones_are_refused():
    n = 4
    most = 2.0 ** (63 - sums.FRACTION) / n
    below = torch.tensor(most * (1 - 2**-30), dtype=torch.float64)
    vector = n * sums.to_vector({"b": below}, {"b": []}, n)
    assert sums.from_vector(vector, {"b": []})["b"] == n * below
    for value in (most, torch.nan, -torch.inf):
        with pytest.raises(sums.ValuesTooLarge, match="finite"):
            sums.to_vector({"b": torch.tensor(value, dtype=torch.float64)}, {"b": []}, n)


def test_other_tensors_than_those_of_the_sum_are_refused():
    with pytest.raises(InputError, match=r"no z .*\[2\]"):
        sums.to_vector({"z": torch.zeros(2)}, SHAPES, 2)
    with pytest.raises(InputError, match=r"no a .*\[3\]"):
        sums.to_vector({"a": torch.zeros(3)}, SHAPES, 2)
    with pytest.raises(ValueError, match="a sum of"):
        sums.length({"a": [2**20, 2**20]})
    with pytest.raises(ValueError, match="a sum of"):
        sums.length({"a": [-1, -1]})


@pytest.mark.parametrize(("share", "wanted"), [(0.5, [2, 2, 3, 3]), (0.7, [2, 3, 3, 4])])
def test_more_than_the_share_of_the_nodes_has_to_stay(share, wanted):
    assert [sums.SecureSums(share).threshold(n) for n in (2, 3, 4, 5)] == wanted
    assert sums.SecureSums(0.58).threshold(50) == 30  # .58 * 50 is 28.999… in doubles.
    with pytest.raises(InputError, match=r"secure_threshold is 0\.4"):
        sums.SecureSums(0.4)
