"""The gate of a federation's server passes on what nodes send, and nothing else."""

import asyncio
from base64 import b64encode
from datetime import UTC, datetime

import pytest

from stforecast.flower import gate
from stforecast.flower.superlink import make_keys
from stforecast.flower.supernode import HOST, free_port

pytestmark = pytest.mark.attack("strangers at the port")

NOBODY = 502
"""The answer of a gate that would pass a message on, if somebody were behind it."""


@pytest.fixture
def ask(tmp_path):
    """Sends a request, by its decoded path as a server does, and returns the answer's status."""
    pytest.importorskip("flwr", reason="needs the extra flower")

    def send(path, method="POST", body=b"", **settings):
        app = gate.make_gate(f"{HOST}:{free_port()}", make_keys(tmp_path).authority, **settings)
        said = []

        async def receive():
            return {"type": "http.request", "body": body}

        async def answer(message):
            said.append(message)

        length = (b"content-length", str(len(body)).encode())
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": [(b"host", b"a.org"), length],
        }  # fmt: skip
        asyncio.run(app(scope, receive, answer))
        return said[0]["status"]

    return send


@pytest.mark.parametrize(
    "path",
    [
        "/", "/docs", "/openapi.json", "/health", "/v1/control/start-run", "/v1/control/list-runs",
        "/v1/runtime/acquire-task", "/v1/fleet", "/v1/fleet/", "/v1/fleet/../control/start-run",
        "/v1/fleet/x/../../control/start-run", "//v1/control/start-run", "/V1/fleet/get-fab",
        "/v1/fleet/get-fab\r\nX: y", "/v1/fleet/get-fab?/v1/control/list-runs",
        "/v1/fleet/get-fab\n", "/v1/fleet/get-fab/../../control/list-runs", "/v1/fleet/get-fab;/..",
    ],
)  # fmt: skip
def test_all_but_the_calls_of_nodes_is_refused(ask, path):
    assert ask(path) == 404


def test_a_node_passes_by_one_method_and_a_stranger_up_to_a_size(ask):
    assert ask("/v1/fleet/pull-messages", body=b"x") == NOBODY
    assert ask("/v1/fleet/pull-messages", method="GET") == 405
    assert ask("/v1/fleet/push-object", body=bytes(gate.SMALL)) == NOBODY
    assert ask("/v1/fleet/push-object", body=bytes(gate.SMALL + 1)) == 503


def test_a_large_body_needs_the_signature_of_the_keys_owner():
    asymmetric = pytest.importorskip("flwr.supercore.primitives.asymmetric")
    (private, public), (other, _) = (asymmetric.generate_key_pairs() for _ in range(2))
    key, time = asymmetric.public_key_to_bytes(public), datetime.now(UTC).isoformat()

    def headers(by):
        values = b64encode(key), b64encode(asymmetric.sign_message(by, time.encode()))
        return dict(zip(gate.SIGNED, (*map(bytes.decode, values), time), strict=True))

    assert gate.is_signed(headers(private))
    assert not gate.is_signed(headers(other))
    assert not gate.is_signed(headers(private) | {gate.SIGNED[1]: "?"})
    assert not gate.is_signed({})


def test_an_open_gate_lets_the_command_flwr_pass(ask):
    assert ask("/v1/control/start-run", everything=True) == NOBODY


def test_the_addresses_tried_are_those_that_others_may_reach():
    assert not [a for a in gate.other_addresses() if a.startswith(("127.", "[::1]", "[fe80"))]


def test_nothing_is_tried_without_a_superlink():
    gate.check_superlink_of(["pytest", "--insecure"])
