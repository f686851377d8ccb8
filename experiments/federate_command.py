"""The command that writes the Flower app of a federation of real nodes, for `flwr run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from experiments.forecasts.commands import run_options
from experiments.options import HELP, PATH, OptionSections
from stforecast.default import DEFAULT_METHOD


@click.command("federate", cls=OptionSections, sections=run_options, context_settings=HELP)
@click.option(
    "--method", default=DEFAULT_METHOD, show_default=True, help="See: stforecast list methods."
)
@click.option("--clients", type=int, required=True, help="Number of cells of all nodes together.")
@click.option("--out", type=PATH, required=True, help="Folder for the app.")
@click.option("--results", type=PATH, required=True, help="Folder on the server for the results.")
@click.option(
    "--step", default="1h", show_default=True,
    help="Step of all nodes' data, such as 10min: the server has no data to read it from.",
)  # fmt: skip
@click.option(
    "--start", type=float, default=600.0, show_default=True,
    help="Seconds to wait for all clients before the first round.",
)  # fmt: skip
@click.option(
    "--answer", type=float, default=600.0, show_default=True,
    help="Seconds to wait for the answers of a round.",
)  # fmt: skip
@click.option(
    "--enough", type=int, default=0, show_default=True,
    help="Clients required to begin after --start seconds; 0 requires all.",
)  # fmt: skip
@click.option(
    "--node", "nodes", multiple=True, metavar="NUMBER=FIRST-LAST",
    help="Clients of a node, by the number that `flwr supernode register` printed for its key; "
    "repeat for each node. Without it, the first node to claim a client has it.",
)  # fmt: skip
def federate(
    method: str, clients: int, out: Path, results: Path, step: str, start: float, answer: float,
    enough: int, nodes: tuple[str, ...], **settings: Any,
) -> None:  # fmt: skip
    """Write the Flower app of a federation, to be started with `flwr run`.

    All nodes share the settings; each node's owner configures the path of its data. See
    docs/federation.md.
    """
    from stforecast.config import resolve
    from stforecast.federated.nodes.membership import Patience
    from stforecast.flower.app_folder import write_app
    from stforecast.flower.settings import RunSettings, parse_owner, parse_step

    run = RunSettings(
        resolve(method, **settings), clients, Patience(start, answer, enough=enough),
        str(results.resolve()), parse_step(step), dict(map(parse_owner, nodes)),
    )  # fmt: skip
    RunSettings.from_run_config(run.as_run_config())
    click.echo(f"begin it with: flwr run {write_app(out, run)} --stream")


COMMANDS = (federate,)
