"""Products in tiles of the processor (Intel AMX): emulated, compiled, and left out."""

import ctypes
import logging
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from stforecast.federated.kernels import compiler
from stforecast.federated.kernels.compiler import call, library, supported, tiles
from stforecast.federated.kernels.functions import stacked_grus

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here")

PRODUCTS = [
    (1, 16, 16, False),
    (10, 48, 48, False),
    (15, 32, 96, False),
    (16, 128, 80, False),
    (17, 16, 64, False),
    (24, 128, 384, False),
    (31, 32, 32, False),
    (33, 64, 16, False),
    (50, 48, 112, False),
    (65, 32, 48, False),
    (16, 0, 48, True),
    (16, 1, 16, True),
    (48, 31, 144, True),
    (64, 33, 16, True),
    (112, 264, 48, True),
]
"""Rows, depth and columns of products, and whether the left factor is transposed."""

GUARD = 64


def multiplied(a, b, across, add=None):
    """Return the kernel's product, and check that it writes no more than that."""
    depth, n = b.shape
    m = a.shape[1 if across else 0]
    c = torch.full((GUARD + m * n + GUARD,), torch.nan)
    own = c[GUARD:-GUARD].view(m, n)
    if add is not None:
        own.copy_(add)
    call("multiply", torch.bfloat16, m, depth, n, int(across), int(add is not None), a, b, own)
    assert c[:GUARD].isnan().all()
    assert c[-GUARD:].isnan().all()
    return own


def factors(m, depth, n, across, draw):
    g = torch.Generator().manual_seed(m + depth + n)
    return draw((depth, m) if across else (m, depth), g), draw((depth, n), g)


def integers(shape, generator):
    return torch.randint(-8, 9, shape, generator=generator).float()


def normal(shape, generator):
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize(("m", "depth", "n", "across"), PRODUCTS)
def test_products_of_small_integers_are_exact(emulated_tiles, m, depth, n, across):
    a, b = factors(m, depth, n, across, integers)
    expected = (a.double().mT if across else a.double()) @ b.double()
    assert torch.equal(multiplied(a, b, across).double(), expected)
    base = integers((m, n), torch.Generator().manual_seed(0))
    assert torch.equal(multiplied(a, b, across, base).double(), base + expected)
    assert ctypes.c_int.in_dll(emulated_tiles, "tile_faults").value == 0


@pytest.mark.parametrize(("m", "depth", "n", "across"), PRODUCTS)
def test_sums_have_single_precision(emulated_tiles, m, depth, n, across):
    """An addition in a sum of n terms is off by at most 2⁻²⁴ of the terms' absolute sum."""
    a, b = factors(m, depth, n, across, normal)
    left, right = (t.bfloat16().double() for t in (a.mT if across else a, b))
    error = (multiplied(a, b, across) - left @ right).abs()
    assert (error <= (depth + 2) * 2**-24 * (left.abs() @ right.abs())).all()


def test_factors_are_rounded_to_nearest_as_torchs(emulated_tiles):
    values = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    values[0] = 1 + torch.arange(32) * 2**-8  # Each second one is halfway between two.
    values[1] = torch.logspace(-30, 30, 32)
    assert torch.equal(multiplied(values, torch.eye(32), False), values.bfloat16().float())


def test_nan_stays_in_its_row(emulated_tiles):
    a, b = factors(24, 32, 48, False, normal)
    a[3, 5] = torch.nan
    product = multiplied(a, b, False)
    assert product[3].isnan().all()
    assert product.isnan().sum() == product.shape[1]


@pytest.mark.repeats
def test_each_thread_has_its_own_tiles_and_releases_them(emulated_tiles):
    """Batches of other sizes need tiles of other shapes."""
    g = torch.Generator().manual_seed(0)

    def work(batch):
        x = torch.ones(2, batch, 3, 1)
        with torch.autocast("cpu", torch.bfloat16):
            states = stacked_grus([x], [weights])
            slopes = torch.autograd.grad(states.sum(), weights)
        return torch.cat([t.detach().flatten() for t in (states, *slopes)]), left()

    left = emulated_tiles.tiles_configured
    shapes = (2, 1, 96), (2, 32, 96), (2, 96), (2, 96)
    weights = tuple(torch.randn(s, generator=g).requires_grad_() for s in shapes)
    batches = [1, 10, 24, 33] * 8
    alone = {batch: work(batch)[0] for batch in set(batches)}
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, batches))
    for batch, (found, configured) in zip(batches, together, strict=True):
        assert not configured
        assert torch.equal(found, alone[batch])
    assert ctypes.c_int.in_dll(emulated_tiles, "tile_faults").value == 0


@pytest.mark.parametrize(
    ("flags", "variants", "permitted", "told"),
    [
        ("amx_bf16 amx_tile", ("bfloat16", "tiles"), True, "used"),
        ("avx512_bf16 amx_tile", ("bfloat16", "tiles"), True, "the processor has none"),
        ("amx_bf16 amx_tile", ("bfloat16",), True, "the compiler does not know them"),
        ("amx_bf16 amx_tile", ("bfloat16", "tiles"), False, "the system does not permit them"),
    ],
)
def test_without_tiles_bfloat16_is_as_before(
    monkeypatch, caplog, forget, flags, variants, permitted, told
):
    caplog.set_level(logging.DEBUG, "stforecast")
    monkeypatch.setattr(compiler, "processor_flags", lambda: flags)
    monkeypatch.setattr(compiler, "_has", lambda variant: variant in variants)
    monkeypatch.setattr(compiler, "_tiles_permitted", lambda: permitted)
    forget()
    assert tiles() is (told == "used")
    assert compiler._variant(torch.bfloat16) == ("tiles" if tiles() else "bfloat16")
    assert compiler._variant(torch.float32) == "float"
    assert torch.bfloat16 in supported()
    assert len(caplog.records) == 1
    assert told in caplog.text


def test_the_system_permits_them_only_where_the_processor_has_them():
    assert compiler._tiles_permitted() <= ("amx_tile" in compiler.processor_flags().split())


@pytest.mark.repeats
def test_the_instructions_are_compiled():
    """Also where the processor cannot run them."""
    command = [os.environ.get("CC", "cc"), *compiler.COMPILE[1:], "-march=sapphirerapids"]
    macros = [f"-D{m}={v}" for m, v in {"NAME": "tiles", **compiler.VARIANTS["tiles"]}.items()]
    folder = Path(compiler.__file__).parent
    text = "".join((folder / source).read_text() for source in compiler.SOURCES)
    made = lambda *words, source: subprocess.run(  # noqa: E731
        [*command, *words, "-S", "-xc", "-", "-o", "-"],
        input=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made(source="").returncode:
        pytest.skip("the compiler does not know such a processor")
    built = made(*macros, source=text)
    assert built.returncode == 0, built.stderr
    for instruction in ("ldtilecfg", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease"):
        assert instruction in built.stdout
