"""A node runs its own installation, whatever app the server holds; see also test_strangers.py."""

import importlib
import os
import subprocess
from importlib.metadata import entry_points

import pytest

from data_prep.base.errors import InputError
from stforecast.flower import own_app
from stforecast.flower.node_settings import node_programs

pytestmark = pytest.mark.attack("a hostile server")


@pytest.fixture
def runner(monkeypatch):
    pytest.importorskip("flwr", reason="needs the extra flower")
    found = importlib.import_module(own_app.RUNNER)
    for name in ("install_from_fab", "install_app_dependencies", "get_load_client_app_fn"):
        monkeypatch.setattr(found, name, getattr(found, name))
    return found


def test_what_the_server_holds_is_neither_unpacked_nor_loaded(runner, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    own_app.own_program()
    runner.install_from_fab(b"no archive at all", skip_prompt=True)
    assert list(tmp_path.iterdir()) == []
    load = runner.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    assert type(load("evil/evil", "1.0.0", "hash")).__name__ == "ClientApp"
    with pytest.raises(InputError, match="installs nothing that the server names"):
        runner.install_app_dependencies(tmp_path, launch_id="1")


def test_another_flower_that_runs_apps_differently_is_refused(runner, monkeypatch):
    monkeypatch.delattr(runner, "get_load_client_app_fn")
    with pytest.raises(InputError, match=r"has no .*get_load_client_app_fn, so a node could not"):
        own_app.own_program()


def test_no_other_program_of_apps_runs_on_a_node(runner):
    names = {e.name for e in entry_points(group="console_scripts") if e.name.startswith("flwr-")}
    assert {own_app.PROGRAM, "flwr-agentapp", "flwr-serverapp"} <= names
    with node_programs(fork=False) as folder:
        path = os.pathsep.join([str(folder), os.environ["PATH"]])
        assert names <= {p.name for p in folder.iterdir()}
        for name in names - {own_app.PROGRAM}:
            done = subprocess.run([name, "--help"], env={"PATH": path}, check=False)
            assert done.returncode == 1
    assert not folder.exists()
