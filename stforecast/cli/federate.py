"""The commands of a federation of real nodes: federate, which writes its Flower app, and node."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import click

from stforecast.cli.commands import CONFIG, OptionSections
from stforecast.cli.options import HELP, JSON, PATH, check_given, given
from stforecast.cli.run import run_options as options_of_run
from stforecast.forecasting import DEFAULT_METHOD

NOT_HERE = {"clients", "cohort", "workers", "memory", "checkpoint_every"}
"""Options of a run that nodes do not read, or that have another meaning here."""


def run_options(args: list[str]) -> dict[str, list[click.Option]]:
    """Return the options of a run; `--clients` is the number of clients here."""
    sections = options_of_run(args)
    return {
        title: [option for option in options if option.name not in NOT_HERE]
        for title, options in sections.items()
    }


class Federate(OptionSections, click.Group):
    """A command with options that also has subcommands, which take none of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options, unless a subcommand is named."""
        if args and args[0] in self.commands:
            return click.Group.parse_args(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the subcommands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group(
    "federate",
    cls=Federate,
    sections=run_options,
    invoke_without_command=True,
    context_settings=HELP,
)
@CONFIG
@click.option(
    "--method", default=DEFAULT_METHOD, show_default=True, help="See: stforecast list methods."
)
@click.option("--clients", type=int, help="Number of clients of all nodes together.  [required]")
@click.option(
    "--client-is", default="cell", show_default=True,
    help="What a client is: each cell (cell), a node with all its cells, such as an operator "
    "(all), or the cells with the same value in a column of a node's cube (the column's name).",
)  # fmt: skip
@click.option("--out", type=PATH, help="Folder for the app.  [required]")
@click.option("--results", type=PATH, help="Folder on the server for the results.  [required]")
@click.option(
    "--step", default="1h", show_default=True,
    help="Step of all nodes' data, such as 10min: the server has no data to read it from.",
)  # fmt: skip
@click.option(
    "--time-zone", default="",
    help="Zone whose wall clock all nodes' calendars and lags follow, such as Europe/Rome; by "
    "default each node follows that of its own data.",
)  # fmt: skip
@click.option(
    "--units", default="",
    help="Unit of all nodes' data, such as MB; data in GB are converted, others are refused. By "
    "default each node has its own.",
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
    "--strikes", type=int, default=3, show_default=True,
    help="Rounds in a row without a usable answer after which a node is left out: a silent one "
    "until it answers again, one that sent something unusable for good; 0 for never.",
)  # fmt: skip
@click.option(
    "--min-parties", type=int, default=1, show_default=True,
    help="Nodes required to begin and for each round. With two, each can compute what the other "
    "sent, so 3 protects them from each other.",
)  # fmt: skip
@click.option(
    "--node", "nodes", multiple=True, metavar="NUMBER=FIRST-LAST",
    help="Clients of a node, by the number that `flwr supernode register` printed for its key; "
    "repeat for each node. Without it, a client belongs to the first node that claims it.",
)  # fmt: skip
@click.option(
    "--secure-aggregation", is_flag=True,
    help="Mask the nodes' uploads, so that the server learns only sums over the nodes.",
)  # fmt: skip
@click.option(
    "--secure-threshold", type=float, default=0.5, show_default=True,
    help="A secure sum needs more than this share of the round's nodes to stay to its end.",
)  # fmt: skip
@click.option(
    "--unsafe-open", is_flag=True,
    help="Run although strangers can run apps at the server's address; see serve.",
)  # fmt: skip
@click.pass_context
def federate(
    ctx: click.Context, config: Path | None, method: str, clients: int, client_is: str, out: Path,
    results: Path, step: str, time_zone: str, units: str, start: float, answer: float,
    enough: int, strikes: int, min_parties: int, nodes: tuple[str, ...],
    secure_aggregation: bool, secure_threshold: float, unsafe_open: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Write the Flower app of a federation, to be started with `flwr run`.

    All nodes share the settings; each node's owner configures the path of its data. See
    docs/federation.md.
    """
    if ctx.invoked_subcommand:
        return
    check_given(ctx, "clients", "out", "results")
    from stforecast.federated.nodes.membership import Patience
    from stforecast.federated.uploads.masking import SecureSums
    from stforecast.flower.settings import RunSettings, parse_owner, parse_step, write_app
    from stforecast.forecasting.config import check_read, resolve

    check_read(method, given(ctx, settings))
    if not secure_aggregation and given(ctx, {"secure_threshold": secure_threshold}):
        raise click.UsageError("--secure-threshold is read with --secure-aggregation only.", ctx)
    run = RunSettings(
        resolve(method, **settings, clients=client_is), clients,
        Patience(start, answer, enough=enough, strikes=strikes, min_parties=min_parties),
        str(results.resolve()), parse_step(step), dict(map(parse_owner, nodes)),
        SecureSums(secure_threshold) if secure_aggregation else None, time_zone, units, unsafe_open,
    )  # fmt: skip
    RunSettings.from_run_config(run.as_run_config())
    click.echo(f"begin it with: flwr run {write_app(out, run)} --stream")


@federate.command("resume", context_settings=HELP)
@click.argument("results", type=PATH)
@click.option(
    "--from-round", type=int, required=True, help="Round after which the run is to go on."
)
def resume(results: Path, from_round: int) -> None:
    """Let a federation go on from an earlier round: remove the server's checkpoints after it.

    RESULTS is the folder on the server that `stforecast federate --results` named. End the run
    before, and start it again afterwards; the nodes go back to the same round.
    """
    from stforecast.federated.runs.checkpoint import go_back

    later = go_back(results / "checkpoints", from_round)
    removed = f" (removed: {', '.join(map(str, later))})" if later else ""
    click.echo(f"the run goes on after round {from_round}{removed}; start it again with flwr run")


@federate.command("status", context_settings=HELP)
@click.argument("results", type=PATH)
@JSON
def status(results: Path, as_json: bool) -> None:
    """Show how a federation stands: its rounds, nodes, losses and failures.

    RESULTS is the folder on the server that `stforecast federate --results` named.
    """
    from stforecast.cli.standing import status_text
    from stforecast.flower.standing import Standing, read_event_log, read_results

    read_results(results)
    standing = Standing.of(read_event_log(results))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(standing), indent=2))
    else:
        click.echo(status_text(standing))


@federate.command("serve", cls=OptionSections, context_settings=HELP)
@CONFIG
@click.option(
    "--folder", type=PATH, required=True,
    help="Folder of the server, for its database, keys and settings of the command flwr.",
)  # fmt: skip
@click.option(
    "--certificate", type=PATH, required=True,
    help="Certificate for the name by which nodes know the server.",
)  # fmt: skip
@click.option("--private-key", type=PATH, required=True, help="Private key of the certificate.")
@click.option(
    "--host", default="0.0.0.0", show_default=True,
    help="Address of this machine at which nodes join; the default is all of them.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(1, 2**16 - 1), default=8000, show_default=True,
    help="Port at which nodes join.",
)  # fmt: skip
@click.option(
    "--unsafe-open", is_flag=True,
    help="Let whoever reaches the port also list, register and run: any code on this server.",
)  # fmt: skip
def serve(config: Path | None, **settings: Any) -> None:
    """Run the server of federations, at whose port nodes can join and strangers can do nothing.

    It tries what a stranger would at its own address, and ends if that works. Ctrl-C or SIGTERM
    ends it. See docs/federation.md.
    """
    from stforecast.flower.superlink import FederationServer

    FederationServer(**settings).run()


log = logging.getLogger(__name__)


@click.command("node", cls=OptionSections, context_settings=HELP)
@CONFIG
@click.option("--superlink", metavar="HOST:PORT", required=True, help="Address of the server.")
@click.option("--data", type=PATH, required=True, help="Cube of this node, written by prepare.")
@click.option(
    "--first-client", type=int, required=True,
    help="Number of this node's first client in the whole federation, counted from 0.",
)  # fmt: skip
@click.option(
    "--out",
    type=PATH,
    help="Folder for the clients' state and results; by default beside the cube.",
)
@click.option(
    "--root-certificates",
    type=PATH,
    help="Certificate of the authority that signed the server's certificate; by default those of "
    "the system.",
)
@click.option("--key", type=PATH, help="Private key of this node, whose public half is registered.")
@click.option(
    "--require-secure-aggregation", is_flag=True,
    help="Take part only in runs whose server learns nothing but sums over the nodes.",
)  # fmt: skip
@click.option(
    "--worker/--no-worker", default=True, show_default=True,
    help="Answer all messages in one process that keeps running, or each in a new process, which "
    "needs less memory between messages but takes seconds longer.",
)  # fmt: skip
@click.option("--insecure", is_flag=True, help="Use no encryption, for trials on one machine.")
def node(config: Path | None, **settings: Any) -> None:
    """Run a node of a federation: start Flower's SuperNode, and restart it when it ends.

    A node that was killed comes back as soon as the server lets it in. Ctrl-C or SIGTERM ends it.
    See docs/federation.md.
    """
    from data_prep.cube import open_cube
    from stforecast.flower.node_settings import NodeSettings, kept_worker
    from stforecast.flower.supernode import Supervisor

    made = NodeSettings(**settings)
    made.check()
    with open_cube(made.data) as cube:
        last = made.first_client + cube.sizes["cell"] - 1
    log.info("%s: clients %d to %d", made.data, made.first_client, last)
    with contextlib.ExitStack() as stack:
        socket = stack.enter_context(kept_worker()) if made.worker else None

        def command(port: int) -> list[str]:
            return [*made.command(port, socket), "--isolation", "process"]

        Supervisor(command, made.superlink, ("-m", "stforecast.flower.own_app")).run()
