"""Memory and processor time of what this process starts."""

import os
import subprocess
import sys

from experiments.benchmarks.processes import memory, processor_time

HOLD = "held = b'x' * 50_000_000; print(flush=True); input()"
BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_memory_counts_what_a_process_started():
    before = memory([os.getpid()])
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    both, alone = memory([os.getpid()]), memory([child.pid])
    child.communicate(b"\n")
    assert alone > 50
    assert both - before > 40
    assert memory([child.pid]) == 0


def test_processor_time_counts_children_that_ended():
    before = processor_time([os.getpid()])
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert processor_time([os.getpid()]) - before > 0.25
