"""The client's side: a node trains its own cells, whose readings and models stay there."""

from flwr.clientapp import ClientApp

from fuels_app.settings import data_of, settings_of
from stforecast.flower.client_app import make_client_app

app = ClientApp()
answer_of_node = make_client_app()


@app.train()
def answer(message, context):
    """Answer the server's message with this node's cells."""
    values, node = dict(context.run_config), context.node_config
    data, first = data_of(values, int(node["partition-id"]), int(node["num-partitions"]))
    own = {"data": str(data), "first-client": first, "allow-disclosure": True}
    context.run_config, context.node_config = settings_of(values).as_run_config(), own
    try:
        return answer_of_node(message, context)
    finally:
        context.run_config, context.node_config = values, node
