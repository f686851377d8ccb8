"""The commands of a federation of real nodes: federate, which writes its Flower app, and node."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stforecast.cli.commands import CONFIG, SectionedGroup, command, say_json
from stforecast.cli.options import (
    JSON,
    PATH,
    check_given,
    check_history,
    check_run,
    from_dataclass,
    given,
    section,
)
from stforecast.cli.run import run_options
from stforecast.forecasting import DEFAULT_METHOD

if TYPE_CHECKING:
    from stforecast.federated.nodes.run_settings import FederationSettings

log = logging.getLogger(__name__)


NODES = click.Option(
    ["--node", "nodes"],
    multiple=True,
    metavar="NUMBER=FIRST-LAST",
    help="Clients of a node, by the number that `flwr supernode register` printed for its key; "
    "repeat for each node. Without it, a client belongs to the first node that claims it.",
)


@dataclass(frozen=True)
class Disclosure:
    """What a federation may disclose, and to whom.

    Attributes:
        secure_aggregation: refuse settings with which the nodes' uploads cannot be masked. They
            are masked wherever the method's server needs only sums, so that it learns no more.
        plain_uploads: do not mask uploads, so that the server sees what each node sends. With some
            methods, the default forecaster among them, it can compute a node's data from that.
        allow_disclosure: write a run also if two parties take part and each can compute the
            other's data.
        unsafe_open: run although strangers can run apps at the server's address; see
            stforecast federate serve.
    """

    secure_aggregation: bool = False
    plain_uploads: bool = False
    allow_disclosure: bool = False
    unsafe_open: bool = False


def federation_options(args: list[str]) -> dict[str, list[click.Option]]:
    """Return the options of a run, whose `--clients` is a number here, and those of the server."""
    # Nodes do not read them, or they have another meaning here.
    left_out = {"clients", "cohort", "workers", "memory", "checkpoint_every", "poll"}
    return with_server(run_options(args), left_out)


def with_server(
    sections: dict[str, list[click.Option]], left_out: Collection[str]
) -> dict[str, list[click.Option]]:
    """Return the options of the server, and the options of a kind of run that nodes read."""
    from stforecast.federated.nodes.membership import Patience
    from stforecast.federated.uploads.masking import SecureSums

    server = [o for part in (Disclosure, Patience, SecureSums) for o in from_dataclass(part)]
    return {
        title: [option for option in options if option.name not in left_out]
        for title, options in {"Server": server, **sections}.items()
    }


@command(
    CONFIG,
    NODES,
    cls=SectionedGroup,
    sections=federation_options,
    invoke_without_command=True,
)
def federate_command(
    ctx: click.Context,
    *,
    config: Path | None,
    method: str = DEFAULT_METHOD,
    clients: int | None = None,
    client_is: str = "cell",
    out: Path | None = None,
    results: Path | None = None,
    step: str = "1h",
    time_zone: str = "",
    units: str = "",
    totals: bool = False,
    nodes: tuple[str, ...],
    **settings: Any,
) -> None:
    """Write the Flower app of a federation, to be started with `flwr run`.

    All nodes share the settings; each node's owner configures the path of its data. See
    docs/federation.md.

    Options:
        method: see: stforecast list methods.
        clients: number of clients of all nodes together.  [required]
        client_is: what a client is: each cell (cell), a node with all its cells, such as an
            operator (all), or the cells with the same value in a column of a node's cube (the
            column's name).
        out: folder for the app.  [required]
        results: folder on the server for the results.  [required]
        step: step of all nodes' data, such as 10min: the server has no data to read it from.
        time_zone: zone whose wall clock all nodes' calendars and lags follow, such as Europe/Rome;
            by default each node follows its own data's zone.
        units: unit of all nodes' data, such as MB; data in GB are converted, others are refused. By
            default each node has its own.
        totals: learn at the end what the cells of all nodes will carry together, with bounds. Nodes
            whose owners set share_totals take part, three or more.
    """
    if ctx.invoked_subcommand:
        return
    from stforecast.flower.settings import RunSettings, parse_step
    from stforecast.forecasting.config import check_read, resolve

    shared = shared_settings(ctx, settings, nodes)
    check_read(method, given(ctx, settings))
    if settings.get("refit") == "once" and "refit" not in given(ctx, settings):
        settings["refit"] = "final"  # A node forecasts what follows its data.
    found = resolve(method, **settings, clients=client_is)
    shared |= {"step": parse_step(step), "time_zone": time_zone, "units": units}
    shared["totals"] = totals
    if totals:
        click.echo("totals: the server learns test readings and forecasts added up over the nodes")
    write_federation(ctx, out, RunSettings(found, **shared))


def shared_settings(
    ctx: click.Context, settings: dict[str, Any], nodes: tuple[str, ...]
) -> dict[str, Any]:
    """Return what options say of the fields of all `FederationSettings`; take it from `settings`.

    Options that are needed and missing are refused.
    """
    check_given(ctx, "clients", "out", "results")
    from stforecast.federated.core.options import names_of
    from stforecast.federated.nodes.membership import Patience
    from stforecast.federated.uploads.masking import SecureSums
    from stforecast.flower.settings import parse_owner

    patience = {n: settings.pop(n) for n in names_of(Patience) & settings.keys()}
    secure = {n: settings.pop(n) for n in names_of(SecureSums)}
    asked = Disclosure(**{n: settings.pop(n) for n in names_of(Disclosure)})
    if asked.plain_uploads and (asked.secure_aggregation or given(ctx, secure)):
        raise click.UsageError("--plain-uploads excludes secure aggregation and its options.", ctx)
    return {
        "n_clients": ctx.params["clients"],
        "patience": Patience(**patience),
        "out": str(ctx.params["results"].resolve()),
        "owners": dict(map(parse_owner, nodes)),
        "secure": None if asked.plain_uploads else SecureSums(**secure),
        "unsafe_open": asked.unsafe_open,
    }


def write_federation(ctx: click.Context, out: Path | None, run: FederationSettings) -> None:
    """Check the settings as nodes read them, write the app, and say what it does and how to begin.

    Uploads are masked if they can be, unless plain ones were asked for.
    """
    from stforecast.federated.core.options import names_of
    from stforecast.federated.nodes.disclosure import check_parties, with_secure_sums
    from stforecast.federated.uploads.masking import SecureSums
    from stforecast.federated.uploads.uplink import guarantee

    assert out is not None
    run = with_secure_sums(
        run,
        insisted=ctx.params["secure_aggregation"],
        fewest_given=bool(given(ctx, {"min_parties": None})),
    )
    run.from_run_config(run.as_run_config())
    if run.secure is None and (unread := given(ctx, dict.fromkeys(names_of(SecureSums)))):
        typed = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(unread))
        raise click.UsageError(f"{typed} is read with secure aggregation only.", ctx)
    check_parties(run, allowed=ctx.params["allow_disclosure"])
    guarantee(run.config.uplink, 1, run.covered)  # The server needs the accountant.
    write_and_tell(out, run)


def write_and_tell(out: Path, run: FederationSettings) -> None:
    """Write the app, and say how uploads cross and how to begin."""
    from stforecast.federated.nodes.disclosure import uploads_in_words
    from stforecast.flower.settings import write_app

    for words in uploads_in_words(run):
        click.echo(words.typed)
    click.echo(f"begin it with: flwr run {write_app(out, run)} --stream")


@command()
def resume_command(results: Path, *, from_round: int) -> None:
    """Let a federation go on from an earlier round: remove the server's checkpoints after it.

    RESULTS is the folder on the server that `stforecast federate --results` named. End the run
    before, and start it again afterwards; the nodes go back to the same round.

    Options:
        from_round: round after which the run is to go on.
    """
    from stforecast.federated.runs.checkpoint import go_back

    later = go_back(results / "checkpoints", from_round)
    removed = f" (removed: {', '.join(map(str, later))})" if later else ""
    click.echo(f"the run goes on after round {from_round}{removed}; start it again with flwr run")


@command(JSON)
def status(results: Path, *, as_json: bool) -> None:
    """Show how a federation stands: its rounds, nodes, losses and failures.

    RESULTS is the folder on the server that `stforecast federate --results` named.
    """
    from stforecast.flower.standing import Standing, read_event_log, read_results, status_text

    read_results(results)
    standing = Standing.of(read_event_log(results))
    if as_json:
        say_json(dataclasses.asdict(standing))
    else:
        click.echo(status_text(standing))


@command(CONFIG, sections=section("Server", "stforecast.flower.superlink:FederationServer"))
def serve_command(*, config: Path | None, **settings: Any) -> None:
    """Run the server of federations, at whose port nodes can join and strangers can do nothing.

    It tries what a stranger would at its own address, and ends if that works. Ctrl-C or SIGTERM
    ends it. See docs/federation.md.
    """
    from stforecast.flower.superlink import FederationServer

    FederationServer(**settings).run()


@command(name="update")
def continue_command(app: Path, *, out: Path, results: Path, rounds: int = 10) -> None:
    """Write the Flower app that continues a finished federation with the nodes' new data.

    APP is the folder that `stforecast federate --out` wrote. Server and nodes begin with their last
    state: shared and personal parts, and optimisers. Before `flwr run`, each node's owner replaces
    the cube by one that holds the new records, too.

    Options:
        out: folder for the new app.
        results: folder on the server for the new results.
        rounds: further rounds, at the learning rate of refits.
    """
    from stforecast.flower.server_app import prepare_continuation
    from stforecast.flower.settings import read_app

    write_and_tell(out, prepare_continuation(read_app(app), results, rounds))


DATA = click.Option(
    ["--data"],
    type=PATH,
    required=True,
    help="This node's data: a cube, or records as the model's were prepared.",
)


@command(DATA, name="check")
def check_command(
    ctx: click.Context, model: Path, *, data: Path, days: float = 7.0, most_mase: float = 1.0
) -> None:
    """Check a model on this node's own data before it is used; nothing leaves the node.

    MODEL is a saved model, or the node's folder of a run. Prints one line of JSON with the errors
    of its forecasts in the last days, and the cells that are worse than the limit.

    Exit codes: 0 accepted, 20 not accepted, 2 bad input.

    Options:
        days: days to forecast, at the end of the data.
        most_mase: highest MASE at which the model is accepted; 1 is the error of the value one
            day before in the training part.
    """
    check_run(model)
    check_history(data)
    from stforecast.flower.own_model import check_model

    found = check_model(model, data, days, most_mase)
    say_json(found, indent=None)
    ctx.exit(0 if found["accepted"] else 20)


@command(DATA, name="update-alone")
def alone_command(
    ctx: click.Context, model: Path, *, data: Path, days: float = 14.0, level: float = 0.9
) -> None:
    """Train this node's own copy of a model some rounds further, without a server.

    MODEL is the node's folder of a run. The copy is replaced if the new one has a lower MASE on the
    last days, on which it was not trained, beyond an interval. A later federation goes on from the
    federation's state, not from this copy. Prints one line of JSON.

    Exit codes: 12 replaced, 14 the new model lost, 2 bad input.

    Options:
        days: days of the trial, at the end of the data.
        level: confidence of the interval.
    """
    check_run(model)
    check_history(data)
    from stforecast.flower.own_model import train_alone
    from stforecast.service.update import CODES

    found = train_alone(model, data, days, level)
    say_json(found, indent=None)
    ctx.exit(CODES[found["action"]])


for subcommand in (
    resume_command, status, serve_command, continue_command, check_command, alone_command
):  # fmt: skip
    federate_command.add_command(subcommand)


@command(CONFIG, sections=section("Node", "stforecast.flower.node_settings:NodeSettings"))
def node(*, config: Path | None, **settings: Any) -> None:
    """Run a node of a federation: start Flower's SuperNode, and restart it when it ends.

    A node that was killed comes back as soon as the server lets it in. Ctrl-C or SIGTERM ends it.
    See docs/federation.md.
    """
    from stforecast.flower.node_settings import NodeSettings
    from stforecast.flower.supernode import Supervisor

    made = NodeSettings(**settings)
    made.check()
    log.info("%s: clients %d to %d", made.data, made.first_client, made.last_client())
    Supervisor(made.command, made.superlink, ("-m", "stforecast.flower.own_app")).run()
