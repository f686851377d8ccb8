"""A link to nodes of any kind of run, without Flower."""

import json

from data_prep.base.errors import InputError
from stforecast.federated.nodes.messages import OF_SUMS, Link, Message
from stforecast.flower.node import FlowerNode, NodePlace, in_sum, in_totals
from stforecast.flower.settings import read_run
from stforecast.flower.totals import OF_TOTALS

TOKEN = "0123456789abcdef"


def answer_anew(run, config, message):
    """The answer of a node that is started for this message, as Flower's are."""
    about = message.about
    place = NodePlace.of(config, about["run"])
    if about["task"] in OF_SUMS:
        return in_sum(run, place, message)
    if about["task"] in OF_TOTALS:
        return in_totals(run, place, message)
    return FlowerNode(run, place, about["round"] if about["task"] == "round" else None).answer(
        message
    )


class NodeLink(Link):
    """A link to nodes in this process, by the configuration of each."""

    answer = staticmethod(answer_anew)

    def __init__(self, run, configs):
        self.run, self.configs, self.sent = run.as_run_config(), configs, []

    def nodes(self):
        return set(self.configs)

    def ask(self, messages, timeout):
        return {node: self._answer(node, message) for node, message in messages.items()}

    def _answer(self, node, message):
        try:
            run = read_run(self.run)
            return self._post(self.answer(run, self.configs[node], self._post(message)))
        except InputError as e:
            return str(e)

    def _post(self, message):
        self.sent.append(message)
        payload = {name: t.clone() for name, t in message.payload.items()}
        return Message(json.loads(json.dumps(message.about)), payload)
