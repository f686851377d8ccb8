"""The server's side: each client receives the prototypes of those most like it."""

from flwr.serverapp import ServerApp

from fuels_app.settings import settings_of
from stforecast.flower.server_app import serve
from stforecast.flower.telemetry import show_log
from stforecast.flower.wire import GridLink

app = ServerApp()


@app.main()
def main(grid, context):
    """Run the rounds, and write the results."""
    show_log()
    serve(GridLink(grid), settings_of(context.run_config))
