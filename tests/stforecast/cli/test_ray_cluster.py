"""A run on a cluster of Ray whose two nodes are on this machine, as docs/long-runs.md starts it."""

import os
import secrets
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress

import psutil
import pytest
from waiting import wait_for

pytest.importorskip("ray", reason="needs the extra ray: pip install 'stforecast[ray]'")

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
HERE = "--node-ip-address=127.0.0.1"
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


@pytest.fixture
def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def ray_start(tmp_path):
    """Starts a node of one core with options of `ray start`; ends its processes afterwards."""
    with ExitStack() as stack:

        def start(*options):
            words = [*RAY, "start", "--block", "--num-cpus=1", HERE, *options]
            log = stack.enter_context((tmp_path / f"{options[0]}.log").open("w"))
            node = subprocess.Popen(words, env={**os.environ, **SETTINGS}, stdout=log, stderr=log)
            stack.callback(end, node.pid)

        yield start


def end(pid):
    """End a process and all that it started."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(family, 20)[1]:
        process.kill()


def alive(address):
    """Return the number of nodes of a cluster."""
    ask = "import ray; ray.init(log_to_driver=False); print(len(ray.nodes()))"
    env = {**os.environ, **SETTINGS, "RAY_ADDRESS": address}
    done = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else 0


@pytest.mark.slow
def test_a_run_on_two_nodes_writes_the_files_of_one_process(town, tmp_path, ray_start, free_port):
    address = f"127.0.0.1:{free_port}"
    ray_start("--head", f"--port={free_port}", "--include-dashboard=false")
    wait_for(lambda: alive(address) == 1, 60, "the first node", pause=1)
    ray_start(f"--address={address}")
    wait_for(lambda: alive(address) == 2, 60, "the second node", pause=1)
    small = "evaluate.SHARD = 1"
    call = f"from stforecast.forecasting import evaluate; {small}; import stforecast.cli.main as m"
    words = ["run", "--data", town, "--service", "internet", "--split", "days:7,1,2", "--method",
             "fedavg", "--rounds", "2", "--hidden-size", "8", "--cohort", "1", "--workers", "1",
             "--intervals", "normalised"]  # fmt: skip
    spread = ["--engine", "ray", "--actors", "2"]
    for name, more in (("alone", []), ("spread", spread)):
        env = {**os.environ, **SETTINGS, "RAY_ADDRESS": address}
        command = [sys.executable, "-c", f"{call}; m.main()", *words, *more, "--out", name]
        subprocess.run([*map(str, command)], env=env, cwd=tmp_path, check=True)
    for name in ("metrics.csv", "model/state.safetensors", "forecasts.nc"):
        alone, found = ((tmp_path / of / name).read_bytes() for of in ("alone", "spread"))
        assert found == alone, name
    # Without an address, Ray is started on this machine, although a cluster is there.
    own = (
        "from stforecast.bench.ray import cluster\nwith cluster(3) as ray: print(len(ray.nodes()))"
    )
    env = {**os.environ, **SETTINGS}
    command = [sys.executable, "-c", own]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "1"
