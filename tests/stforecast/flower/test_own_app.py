"""A node runs its own installation, whatever app the server holds; see also test_strangers.py.

Here Flower's API of a SuperNode for processes runs alone, with messages that a test puts there.
"""

import os
import sys
import threading

import pytest
from waiting import started, wait_for

from stforecast.flower.supernode import HOST, free_port

pytestmark = pytest.mark.attack("a hostile server")

NODE, RUN = 7, 1
"""Flower's numbers of the node and of the run, see `task_identity`."""


class Api:
    """Flower's API of a SuperNode, for a run whose app is no archive at all."""

    def __init__(self):
        import uvicorn
        from flwr.app import Context, RecordDict
        from flwr.supercore.fab import Fab
        from flwr.supercore.object_store import ObjectStoreFactory
        from flwr.supercore.run import Run
        from flwr.supernode.main import create_app
        from flwr.supernode.nodestate import NodeStateFactory

        states = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
        self.state, self.store = states.state(), states.objectstore_factory.store()
        self.state.set_node_id(NODE)
        self.hash = self.state.store_fab(Fab("", b"no archive at all", {}))
        run = Run.create_empty(RUN)
        run.fab_id, run.fab_version, run.fab_hash = "evil/evil", "1.0.0", self.hash
        self.state.store_run(run)
        context = Context(RUN, NODE, {}, RecordDict(), {}, series_id=run.series_id)
        self.state.set_run_series_context(run.series_id, context)
        self.address = f"{HOST}:{(port := free_port())}"
        config = uvicorn.Config(create_app(state_factory=states), HOST, port, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self):
        self.thread.start()
        wait_for(lambda: self.server.started, 20, "the API")
        return self

    def __exit__(self, *error):
        self.server.should_exit = True
        self.thread.join()

    def ask(self, task_type, message_type="train"):
        """Put an empty message of the server there."""
        from flwr.app import Message, RecordDict
        from flwr.supernode.start_client_internal import _insert_message

        message = Message(RecordDict(), dst_node_id=NODE, message_type=message_type)
        self.state.create_task(task_type=task_type, run_id=RUN, fab_hash=self.hash)
        _insert_message(message, self.state, self.store)

    def answered(self):
        """What was answered: errors, and the messages' own content."""
        found = []
        # Flower 1.41 renamed it.
        messages = getattr(self.state, "get_messages_legacy", None) or self.state.get_messages
        wait_for(lambda: found.extend(messages(is_reply=True)) or found, 60)
        self.state.delete_messages(message_ids=[m.metadata.reply_to_message_id for m in found])
        self.state.delete_messages(message_ids=[m.metadata.message_id for m in found])
        return [m.error.reason for m in found]


@pytest.fixture
def api(monkeypatch, task_identity, tmp_path):
    pytest.importorskip("flwr", reason="needs the extra flower")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.05")
    with Api() as found:
        yield found


def test_what_the_server_holds_is_neither_unpacked_nor_run(api, tmp_path):
    with started("-m", "stforecast.flower.own_app", api.address):
        api.ask("flwr-clientapp")
        assert api.answered() == ["InputError, see the node's own log"]
        api.ask("flwr-clientapp", "query")
        assert api.answered() == ["ValueError, see the node's own log"], "no such part of the app"
        api.ask("flwr-agentapp")
        assert api.answered() == ["InputError, see the node's own log"], "whatever kind it is"
    assert list(tmp_path.iterdir()) == []


def test_a_message_that_nobody_waits_for_ends_no_process(api, tmp_path, monkeypatch):
    """Flower's heartbeats then interrupt the process, here before the first answer."""
    (tmp_path / "sitecustomize.py").write_text(
        "import signal, stforecast.flower.client_app as of\n"
        "answer = of.answer\n"
        "of.answer = lambda *a: (signal.raise_signal(signal.SIGINT), answer(*a))[1]\n"
    )
    paths = [str(tmp_path), *filter(None, sys.path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    with started("-m", "stforecast.flower.own_app", api.address) as process:
        for _ in range(2):
            api.ask("flwr-clientapp")
            assert api.answered() == ["InputError, see the node's own log"]
        assert process.poll() is None


def test_a_message_that_never_arrives_delays_no_other(api, tmp_path, monkeypatch):
    """Flower waits for the rest of a message whose server was killed while it sent it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, flwr.supernode.runtime.run_clientapp as of\n"
        "pull, seen = of.pull_task_input, []\n"
        "def pull_task_input(client):\n"
        "    seen.append(client)\n"
        "    if len(seen) == 1:\n"
        "        threading.Event().wait()\n"
        "    return pull(client)\n"
        "of.pull_task_input = pull_task_input\n"
    )
    paths = [str(tmp_path), *filter(None, sys.path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    with started("-m", "stforecast.flower.own_app", api.address):
        api.ask("flwr-clientapp")
        api.ask("flwr-clientapp")
        assert api.answered() == ["InputError, see the node's own log"]
