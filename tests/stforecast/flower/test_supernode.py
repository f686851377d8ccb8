"""A SuperNode that ends is started again, unless another try would end in the same way.

The SuperNode is a script that prints what Flower 1.41 prints; a slow test has a real one.
"""

import logging
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from waiting import has_ended, started, wait_for

from data_prep.base.errors import InputError
from stforecast.flower.supernode import Supervisor

REFUSED = """
INFO :      Starting Flower SuperNode
ERROR :     Exit Code: 305
Failed to initialize the connection to the SuperLink.
[code: 2004] Failed to activate SuperNode.
The SuperNode could not establish a connection to the SuperLink.

For more information, visit: <https://flower.ai/docs/framework/1.41/en/ref-exit-codes/305.html>
INFO:     Shutting down
"""

UNTRUSTED = """
ERROR :     SSL/TLS handshake error detected.
ERROR :     Exit Code: 305
[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate
"""

OTHER_NAME = """
ERROR :     SSL/TLS handshake error detected.
ERROR :     Exit Code: 305
[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: Hostname mismatch, certificate is not \
valid for 'a.org'. (_ssl.c:1006)
"""

NO_TLS = """
ERROR :     SSL/TLS handshake error detected.
ERROR :     Exit Code: 305
[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1006)
"""

NO_KEY = """
\x1b[91mERROR \x1b[0m:     Exit Code: 302
Unable to parse the private key file.
Node authentication requires elliptic curve private key.

For more information, visit: <https://flower.ai/docs/framework/1.41/en/ref-exit-codes/302.html>
INFO:     Shutting down
"""

KEYLESS = """
ERROR :     Exit Code: 305
Failed to initialize the connection to the SuperLink.
[code: 2001] SuperNode authentication is enabled. All SuperNodes must be registered via the CLI.
"""

CRASH = """
Traceback (most recent call last):
FileNotFoundError: [Errno 2] No such file or directory: '/nowhere'
"""

JOINED = "INFO :      SuperNode ID: 4939720829710414620\n"


def supervisor(*texts, **settings):
    """A supervisor of SuperNodes that print these texts, one after the other, and end."""
    endings = iter(texts)
    say = "import sys; sys.stdout.write(sys.argv[1]); sys.exit(1)"
    return Supervisor(
        lambda port: [sys.executable, "-c", say, next(endings)], "server:1", waits=(0.01, 0.02),
        **settings,
    )  # fmt: skip


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (UNTRUSTED, r"server:1 .*\(unable .*issuer"),
        (OTHER_NAME, r"Hostname mismatch, .* 'a.org'\)"),
        (KEYLESS, "server:1 .*knows; .*key$"),
        (NO_KEY, ": 302 .*private key.$"),
        (CRASH, r"cannot start: FileNotFoundError: .*'/nowhere'$"),
        ("", "printed nothing"),
    ],
)
def test_an_error_that_does_not_pass_ends_in_one_line(text, message):
    with pytest.raises(InputError, match=message):
        supervisor(text).run()


def test_a_refusal_is_a_lease_first_and_an_unknown_key_at_last(caplog):
    with pytest.raises(InputError, match=r"0 s; .*key"):
        supervisor(REFUSED, REFUSED, refused=0.0).run()
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert said == [
        "server:1 does not let this node in: it still counts the node that was here before (for "
        "about a minute), or does not know the key; again in 0.01 s"
    ]


@pytest.mark.repeats
def test_a_node_that_had_joined_is_started_again_whatever_ended_it(caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(InputError, match="302"):
        supervisor(REFUSED, JOINED, JOINED + CRASH, NO_KEY).run()
    said = [r.getMessage() for r in caplog.records if not r.getMessage().startswith("flower: ")]
    assert said[1] == "joined the federation at server:1 as node 4939720829710414620"
    assert [s.partition(";")[0] for s in said[2:]] == [
        "the SuperNode ended", said[1], "the SuperNode ended",
    ]  # fmt: skip


def test_a_node_that_is_killed_before_it_joins_is_started_again(caplog):
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    fail = f"print({NO_KEY!r}); raise SystemExit(1)"
    codes = iter([kill, kill, fail])
    with pytest.raises(InputError, match="302"):
        Supervisor(
            lambda port: [sys.executable, "-c", next(codes)], "a:1", waits=(0.01, 0.01)
        ).run()
    assert caplog.text.count("no connection to a:1 (it printed nothing); again in 0.01 s") == 2


def test_a_handshake_that_the_server_cuts_is_tried_again(caplog):
    """As by a server that is being started, or a proxy whose server is not there."""
    with pytest.raises(InputError, match="302"):
        supervisor(NO_TLS, NO_KEY).run()
    assert "server:1 (305 [SSL: UNEXPECTED_EOF_WHILE_READING]" in caplog.text


def test_a_server_that_is_not_there_is_named_once(caplog):
    tries = "WARNING :   Connection attempt failed, retrying in 1.33 seconds\n" * 3
    with pytest.raises(InputError, match="302"):
        supervisor(tries + NO_KEY).run()
    assert caplog.text.count("no server answers at server:1 yet; trying on") == 1


def test_flowers_programs_are_found_though_this_python_is_not_on_the_path(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("PATH", "/usr/bin")
    say = "import os; print(os.environ['PATH']); raise SystemExit(1)"
    with pytest.raises(InputError, match="cannot start"):
        Supervisor(lambda port: [sys.executable, "-c", say], "a:1").run()
    assert f"flower: {Path(sys.executable).parent}:/usr/bin" in caplog.text


SCRIPT = """
    import logging, sys, textwrap
    from stforecast.flower.supernode import Supervisor

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    child = '''
    import signal, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print("SuperNode ID:", child.pid, flush=True)
    time.sleep(60)
    '''
    Supervisor(lambda port: [sys.executable, "-c", textwrap.dedent(child)], "a:1").run()
"""


@pytest.mark.quick(2)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_node_and_all_that_it_started(how):
    with started("-c", textwrap.dedent(SCRIPT)) as process:
        pid = next(int(w) for w in process.stdout.readline().split()[::-1] if w.isdigit())
        process.send_signal(how)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert said.splitlines()[-1] == f"stopped by {how.name}; the node has left the federation"
    wait_for(lambda: has_ended(pid), 10, "the child's end")
