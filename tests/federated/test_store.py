import re
from pathlib import Path

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.engine.sizing import Store, release_pages


def test_a_stored_tensor_is_a_file():
    store = Store()
    tensor = store.copy(torch.arange(6.0).view(2, 3))
    tensor[1] += 10
    (path,) = store.folder.iterdir()
    values = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32)
    assert values.tolist() == [0, 1, 2, 13, 14, 15]
    assert tensor.tolist() == [[0, 1, 2], [13, 14, 15]]


def test_zeros_take_no_space():
    store = Store()
    assert not store.zeros(torch.empty(1000, 1000, device="meta", dtype=torch.int64)).any()
    (path,) = store.folder.iterdir()
    assert path.stat().st_size == 8_000_000
    assert path.stat().st_blocks * 512 < 100_000


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells what is in memory")
def test_released_values_are_read_again():
    store, other = Store(), torch.arange(3.0)
    tensor = store.copy(torch.ones(1000, 1000))
    (path,) = store.folder.iterdir()

    def resident():
        mapped = Path("/proc/self/smaps").read_text().split(str(path))[1]
        return int(re.search(r"Rss: +(\d+) kB", mapped)[1])

    assert resident() >= 3900
    release_pages([tensor, other])
    assert resident() == 0
    assert tensor.sum() == 10**6
    assert other.tolist() == [0, 1, 2]


def test_a_full_disk_is_told():
    with pytest.raises(InputError, match=r"40000000\.0 GB .*TMPDIR"):
        Store().zeros(torch.empty(10**8, 10**8, device="meta"))
