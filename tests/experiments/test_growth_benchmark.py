"""The benchmark of growth, on a few clients."""

import pytest

from experiments.benchmarks.growth import grow


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", ["fedavg", "fuels"])
def test_a_tenth_of_the_clients_takes_part(method):
    settings = {"method": method, "memory": "1GB", "participation": 0.1}
    taking_part, seconds, server, milliseconds, faults, memory, peak = grow(
        20, 1, settings
    ).values()
    assert taking_part == 2
    assert 0 < server < seconds
    assert milliseconds == pytest.approx(1e3 * (seconds - server) / 2)
    assert faults >= 0
    assert 0 < memory <= peak
