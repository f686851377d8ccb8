"""The command that keeps a node of a federation running."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import click

from experiments.configured import CONFIG, Configured
from experiments.options import HELP, PATH

log = logging.getLogger(__name__)


@click.command("node", cls=Configured, context_settings=HELP)
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
    from stforecast.flower.app_starter import can_fork
    from stforecast.flower.node_settings import NodeSettings, kept_worker, node_programs
    from stforecast.flower.supernode import Supervisor

    made = NodeSettings(**settings)
    made.check()
    with open_cube(made.data) as cube:
        last = made.first_client + cube.sizes["cell"] - 1
    log.info("%s: clients %d to %d", made.data, made.first_client, last)
    with contextlib.ExitStack() as stack:
        socket = stack.enter_context(kept_worker()).socket if made.worker else None
        programs = stack.enter_context(node_programs(fork=made.worker and can_fork()))
        Supervisor(lambda: made.command(socket), made.superlink, programs).run()
