"""The `stforecast` command: its groups, and errors in one line."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import tempfile
from itertools import pairwise
from typing import TextIO

import click

from data_prep.base.errors import CommandFormatter, InputError, Stopped, escaped, log_text
from data_prep.base.files import is_full
from data_prep.base.progress import heartbeat
from data_prep.base.registry import FOREIGN, Registry, foreign_place
from stforecast.cli import data, run
from stforecast.cli.bench import backtest, bench
from stforecast.cli.commands import SuggestingGroup
from stforecast.cli.federate import federate_command, node
from stforecast.cli.forecast import forecast_command
from stforecast.cli.info import info
from stforecast.cli.options import HELP, SuggestingChoice
from stforecast.cli.plan import plan_command
from stforecast.cli.predict import adapt_command, explain_command, predict
from stforecast.cli.run import compare_command, report, score_command
from stforecast.cli.service import export, monitor_command, serve_command, update_command

log = logging.getLogger(__name__)


class Notices(logging.StreamHandler):
    """Handler that writes to the current standard error, not to that at its creation.

    Args:
        once: whether to write no notice twice.
        quiet: whether to write only errors; warnings are kept all the same.
    """

    def __init__(self, *, once: bool = False, quiet: bool = False) -> None:
        logging.Handler.__init__(self)
        self.once, self.quiet = once, quiet
        self.said: set[str] = set()
        self.warned: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Write a notice, unless it repeats one that is written once."""
        if self.once:
            if (text := record.getMessage()) in self.said:
                return
            self.said.add(text)
        if record.levelno >= logging.WARNING:
            self.warned.append(log_text(record))
        if not self.quiet or record.levelno >= logging.ERROR:
            super().emit(record)

    @property
    def stream(self) -> TextIO:
        """Stream that messages are written to."""
        return sys.stderr


@click.group(cls=SuggestingGroup, context_settings=HELP)
@click.version_option(package_name="stforecast", message="%(prog)s %(version)s")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress bars and no notices.")
@click.option("--debug", is_flag=True, help="Show automatic choices, and errors with tracebacks.")
@click.option(
    "--log-format",
    type=SuggestingChoice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of notices on standard error: text, or one line of JSON per notice.",
)
@click.pass_context
def cli(ctx: click.Context, *, quiet: bool, debug: bool, log_format: str) -> None:
    """Federated forecasting of cellular and road traffic, from raw records to figures.

    A first tour: simulate, prepare, run, plot, predict. Every command has its own --help.
    """
    ctx.ensure_object(dict).update(progress=sys.stderr.isatty() and not quiet, log=log_format)
    name = str(ctx.invoked_subcommand)
    if not quiet and name not in ("node", "serve"):
        ctx.with_resource(heartbeat(name))
    level = logging.WARNING if quiet else logging.DEBUG if debug else logging.INFO
    # Commands may read the same data several times.
    once = name not in ("node", "serve")
    ctx.obj["warned"] = _write_notices(log_format, once=once, quiet=quiet).warned
    brought = (command.callback.__module__ for command in BROUGHT.values() if command.callback)
    for package in ("data_prep", "stforecast", *brought):
        logging.getLogger(package.partition(".")[0]).setLevel(level)


def _write_notices(log_format: str, *, once: bool = False, quiet: bool = False) -> Notices:
    """Write notices to standard error, as text or as lines of JSON."""
    notices = Notices(once=once, quiet=quiet)
    notices.setFormatter(CommandFormatter())
    if log_format == "json":
        from stforecast.flower.telemetry import JsonLines

        notices.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[notices], force=True)
    return notices


BROUGHT: Registry[click.Command] = Registry(
    "command", is_entry=lambda thing: isinstance(thing, click.Command), group="stforecast.commands"
)
"""Commands that other packages bring."""

for command in (
    *(data.simulate_command, data.download_command, data.prepare, export, info),
    *(run.run_command, run.divide, run.plot, run.leaks, run.list_command),
    *(compare_command, score_command, report),
    *(forecast_command, predict, plan_command, explain_command, adapt_command),
    *(update_command, monitor_command, serve_command),
    *(bench, backtest, federate_command, node),
    *BROUGHT.values(),
):
    cli.add_command(command)


def main(argv: list[str] | None = None) -> None:
    """Run the command and exit: 0 success, 2 bad input (one line on stderr), 130 or 143 stopped."""
    # Otherwise, waiting threads of OpenMP keep a core busy that another program needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may hold any bytes
        sys.stdout.reconfigure(errors="backslashreplace")
    write = sys.stdout.write  # Tables show names and units of others.
    vars(sys.stdout)["write"] = lambda text: write(escaped(text))
    try:
        sys.exit(
            cli.main(args or ["--help"], prog_name="stforecast", standalone_mode=False, obj={})
        )
    except (Exception, Stopped) as e:
        if "--debug" in args and not isinstance(e, Stopped):
            raise
        code, message = _explain(e)
        if "--log-format=json" in args or ("--log-format", "json") in pairwise(args):
            _write_notices("json")  # A wrong command ends before its group is called.
            log.error(" ".join(message.split()))
        else:
            click.echo(escaped(f"stforecast: {' '.join(message.split())}"), err=True)
        sys.exit(code)


def _explain(e: Exception | Stopped) -> tuple[int, str]:
    if isinstance(e, Stopped):
        return 128 + e.signal, str(e)
    if isinstance(e, click.Abort):
        return 130, "interrupted"
    if isinstance(e, click.UsageError):
        command = e.ctx.command_path if e.ctx else "stforecast"
        return 2, f"{e.format_message()} See: {command} --help"
    if isinstance(e, click.ClickException):
        return 2, e.format_message()
    if isinstance(e, InputError):
        return 2, e.typed
    # Messages of torch, of the system and of the loader of libraries.
    of_memory = "out of memory|(allocate|enough) memory|Storage size calculation|"
    of_memory += "failed to map segment|can't start new thread"
    if isinstance(e, MemoryError) or re.search(of_memory, str(e)):
        return 2, _no_memory()
    if isinstance(e, OSError):
        place = f"standard output or {tempfile.gettempdir()}" if is_full(e) else "input/output"
        return 2, f"{e.filename or place}: {e.strerror or e}"
    problem = f"{type(e).__name__}: {e}"
    if place := foreign_place(e):
        return 1, f"{place}: {problem}; correct it; with --debug there is a traceback"
    foreign = (
        f"correct {' or '.join(sorted(FOREIGN))} if the cause is there, or " if FOREIGN else ""
    )
    report = f"{foreign}please report it with the output of stforecast --debug"
    return 1, f"internal error ({problem}); {report}"


def _no_memory() -> str:
    """Return the message for lack of memory, with the limit of the process if it has one."""
    import resource  # which Windows lacks

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    advice = "take smaller sizes or fewer at once"
    if limit == resource.RLIM_INFINITY:
        return f"not enough memory for these settings; {advice}"
    return (
        f"not enough memory: this process is limited to {limit / 1e9:.2g} GB (ulimit -v); raise "
        f"the limit, or {advice}"
    )


if __name__ == "__main__":
    main()
