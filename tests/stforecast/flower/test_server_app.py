"""Flower's apps. Skipped without the extra."""

import logging

import pytest

from stforecast.federated.nodes.messages import Message
from stforecast.flower.client_app import make_client_app
from stforecast.flower.wire import pack

flwr = pytest.importorskip(
    "flwr.app", reason="needs the extra flower: pip install 'stforecast[flower]'"
)

SECRET = "north-hospital-4142"


@pytest.mark.parametrize(
    "about", [{"task": "join", "run": "0" * 16}, {"task": "join", "run": SECRET}, {}]
)
def test_an_error_tells_the_server_no_more_than_its_class(about, federation, caplog, task_identity):
    """The owner's log says what is wrong: here paths and names of the node."""
    caplog.set_level(logging.ERROR)
    run, _, _ = federation()
    context = flwr.Context(
        run_id=1, node_id=2, node_config={"data": f"{SECRET}.nc", "first-client": 0},
        state=flwr.RecordDict(), run_config=run.as_run_config(),
    )  # fmt: skip
    asked = flwr.Message(pack(Message(about)), dst_node_id=2, message_type="train")
    reply = make_client_app()(asked, context)
    assert reply.has_error()
    assert reply.error.code == 100
    assert reply.error.reason == "InputError, see the node's own log"
    assert SECRET in caplog.text or not about
