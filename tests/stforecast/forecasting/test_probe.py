"""The probe tells changes of code, and not of processors."""

import pytest

from stforecast.federated.kernels.compiler import library
from stforecast.forecasting.probe import LONG, SHORT, TOLERANCE, probe


@pytest.mark.parametrize("days", [SHORT, LONG])
def test_the_default_has_the_same_probe_without_compiled_kernels(days, monkeypatch):
    compiled = probe("fedlean", days)
    with monkeypatch.context() as patch:
        patch.setenv("STFORECAST_KERNELS", "off")
        library.cache_clear()
        try:
            plain = probe.__wrapped__("fedlean", days)
        finally:
            library.cache_clear()
    assert plain == pytest.approx(compiled, rel=TOLERANCE)
