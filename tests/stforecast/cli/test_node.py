"""`stforecast node`: its mistakes, and with a real SuperLink, keys and TLS, how it comes back."""

import signal
import sys

import psutil
import pytest
from click.testing import CliRunner
from mentions import mentions
from waiting import wait_for

from data_prep.base.errors import InputError
from experiments.local_flower import LocalFlower, make_node_key
from stforecast.cli.federate import node
from stforecast.flower.superlink import make_keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("superlink = 'here'", "superlink is 'here'; give the server's name and port"),
        ("superlink = 'here:1'\ndata = 'gone.nc'", "gone.nc: no cube here"),
        ("superlink = 'here:1'\ngroups = 'of.csv'", r"node-folder/of.csv: no table of groups"),
        ("superlnk = 'here:1'", r"node.toml: unknown key 'superlnk'.*did you mean 'superlink'"),
    ],
)
def test_mistakes_in_a_file_are_named_before_anything_starts(text, message, tmp_path, town):
    given = dict(line.split(" = ", 1) for line in text.splitlines())
    given = {"data": f"'{town}'", "first_client": "0", **given}
    folder = tmp_path / "node-folder"
    folder.mkdir()
    (folder / "node.toml").write_text("\n".join(f"{k} = {v}" for k, v in given.items()))
    done = CliRunner().invoke(node, ["--config", str(folder / "node.toml")])
    with pytest.raises(InputError, match=message):
        raise done.exception


CONFIG = """
superlink = "{address}"
data = "{data}"
first_client = 0
out = "state"
root_certificates = "{authority}"
key = "{key}"
"""


@pytest.mark.slow
def test_a_killed_node_comes_back_within_the_lease(tmp_path, town):
    """With keys and TLS; one that is stopped leaves, so that it can come back at once."""
    pytest.importorskip("flwr", reason="needs the extra flower: pip install 'stforecast[flower]'")
    keys = make_keys(tmp_path / "keys")
    key, public = make_node_key(tmp_path / "keys", "north")
    with LocalFlower(tmp_path / "logs", keys) as flower:
        flower.register(public)
        text = CONFIG.format(address=flower.address, data=town, authority=keys.authority, key=key)
        (tmp_path / "node.toml").write_text(text)
        words = ["-m", "stforecast", "node", "--config", tmp_path / "node.toml"]
        flower.start("north", sys.executable, *words)
        log = tmp_path / "logs" / "north.log"

        def joined(times, seconds):
            def so_far():
                assert flower.running["north"].poll() is None, log.read_text()
                return log.read_text().count("joined the federation at")

            wait_for(lambda: so_far() >= times, seconds, f"join {times}")

        joined(1, 120)
        (child,) = [
            p for p in psutil.Process(flower.running["north"].pid).children()
            if any("own_supernode" in word for word in p.cmdline())
        ]  # fmt: skip
        child.send_signal(signal.SIGKILL)
        joined(2, 240)
        assert "not let" in log.read_text()
        flower.running["north"].send_signal(signal.SIGTERM)
        assert flower.running.pop("north").wait(60) == 0
        assert mentions(log.read_text(), "SIGTERM;", "left")
        before = log.read_text().count("does not let this node in")
        flower.start("north", sys.executable, *words)
        joined(3, 120)
        assert log.read_text().count("does not let this node in") == before
