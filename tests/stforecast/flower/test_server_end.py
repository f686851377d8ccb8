"""The process of a run ends with the SuperLink that started it."""

import contextlib

import psutil
import pytest
from waiting import has_ended, started, wait_for

RUN = """
import sys, threading
from stforecast.flower.server_app import end_with_superlink

end_with_superlink(sys.argv)
print("begun", flush=True)
threading.Event().wait()  # As Flower does for an answer of the SuperLink.
"""

SUPERLINK = """
import subprocess, sys
process = subprocess.Popen([sys.executable, "-c", sys.argv[1], "--parent-pid", "1"])
print(process.pid, flush=True)
process.wait()
"""


@pytest.mark.attack("kills")
def test_a_run_ends_with_its_superlink():
    with started("-c", SUPERLINK, RUN) as superlink:
        run = int(superlink.stdout.readline())
        try:
            assert superlink.stdout.readline() == "begun\n"
            superlink.kill()
            wait_for(lambda: has_ended(run))
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(run).kill()
