"""The registries as Markdown: commands, options of methods, and the messages of methods.

The messages of a method are measured in two rounds of a small federation: its row names their
tensors, and counts the floats of a client's message in the second round. So nothing of it is
written by hand but `Method.needs`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from html import escape
from typing import Any

import click
import numpy as np
import pandas as pd
import torch

from data_prep.base.registry import help_text
from stforecast.bench.tables import markdown
from stforecast.cli.commands import Sectioned
from stforecast.cli.options import from_dataclass
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.method import Method, Task, overridden
from stforecast.federated.core.population import Population, SplitModel
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Payload
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation

NOTE = "Options and defaults as `--help` prints them; `--method` and `--model` change some of them."

N_CLIENTS, DAY, N_CLASSES, SIDE = 2, 24, 10, 32
"""Clients, steps of a period, and classes and pixels a side of the images."""


def commands_page() -> str:
    """Return the page of all commands."""
    from stforecast.cli.main import cli

    sections = _sections(cli, click.Context(cli, info_name="stforecast"))
    return "\n\n".join(["# Commands", NOTE, *sections])


def options_page() -> str:
    """Return the page of the options that methods and models have of their own."""
    from stforecast.baselines import BASELINES
    from stforecast.forecasting.config import defaults
    from stforecast.methods import METHODS
    from stforecast.models import MODELS
    from vision.config import defaults as image_defaults
    from vision.methods import METHODS as IMAGE_METHODS
    from vision.models import MODELS as IMAGE_MODELS
    from vision.partition import PARTITIONS
    from vision.streams import STREAMS

    forecasts = {**METHODS, **BASELINES}
    made_for = {name: defaults(name) for name in forecasts}
    of_images = {name: image_defaults(name) for name in IMAGE_METHODS}
    parts: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "Methods of forecasts": (forecasts, made_for),
        "Models of forecasts": (MODELS, {}),
        "Methods of images": (IMAGE_METHODS, of_images),
        "Models of images": (IMAGE_MODELS, {}),
        "Partitions and task streams": ({**PARTITIONS, **STREAMS}, {}),
    }
    text = "\n\n".join(t for head, of in parts.items() for t in (f"## {head}", *_options(*of)))
    return (
        "# Options of methods, models and partitions\n\nMethods and models without options are not "
        f"listed. [All methods](../methods.md) says what they do.\n\n{text}"
    )


def _options(known: Mapping[str, Any], made_for: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, entry in known.items():
        if options := from_dataclass(getattr(entry, "Options", entry), made_for.get(name)):
            yield f"### {name}"
            if summary := getattr(entry, "summary", ""):
                yield f"{summary[0].upper()}{summary[1:]}."
            yield _table(options, click.Context(click.Command(name)))


def _sections(command: click.Command, ctx: click.Context) -> Iterator[str]:
    depth = len(ctx.command_path.split())
    if depth > 1:
        yield f"{'#' * min(depth, 4)} {ctx.command_path}"
    yield help_text(command.help).replace("\b\n", "")
    yield f"```text\n{' '.join([ctx.command_path, *command.collect_usage_pieces(ctx)])}\n```"
    more = command.make_sections([]) if isinstance(command, Sectioned) else {}
    own = [p for p in command.get_params(ctx) if isinstance(p, click.Option)]
    for title, options in {"": own, **more}.items():
        if title:
            yield f"**{title}**"
        yield _table(options, ctx)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            if found := command.get_command(ctx, name):
                yield from _sections(found, click.Context(found, parent=ctx, info_name=name))


def _table(options: list[click.Option], ctx: click.Context) -> str:
    """Tabulate options with their help, as HTML."""
    records = (option.get_help_record(ctx) for option in options)
    rows = (
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(text)}</td></tr>"
        for name, text in filter(None, records)
        if not name.startswith(("-h,", "--help"))
    )
    body = "\n".join(rows)
    return f'<table class="options">\n{body}\n</table>' if body else ""


def forecasts_sent() -> str:
    """Tabulate what the federated methods for forecasts send."""
    from stforecast.data.clock import Calendar
    from stforecast.data.window_spec import WindowSpec
    from stforecast.data.windows import History
    from stforecast.forecasting.task import ForecastTask, client_data
    from stforecast.methods import METHODS
    from stforecast.models import MODELS

    hours = Calendar(pd.Timestamp("2013-11-04"), pd.Timedelta("1h"))

    def row(name: str, method: type[Method]) -> dict[str, str]:
        own = method.defaults.get("model")  # A part of the method, as fedlean's.
        spec = WindowSpec(closeness=1, periods=1, period=DAY) if own else WindowSpec(period=DAY)
        steps = np.arange(spec.max_lag + spec.period)
        random = np.random.default_rng(0).normal(size=(len(steps), N_CLIENTS))
        history = History.of(random.astype(np.float32), spec, hours)
        windows = history.windows(history.sources(steps[spec.max_lag :]), with_next=True)
        task = ForecastTask(spec.period, window=spec)
        model = MODELS[own or "dual_gru"]
        return _sent(name, method, lambda: model(spec), task, client_data(windows), Training())

    return markdown([row(name, m) for name, m in METHODS.items() if not m.pooled])


def images_sent() -> str:
    """Tabulate what the federated methods for images send."""
    from vision.backbones.load import TINY
    from vision.methods import METHODS
    from vision.models.convnet import ConvNet, ConvNetOptions
    from vision.models.vit import FrozenViT, ViTOptions
    from vision.task import Classification

    shape = (3, SIDE, SIDE)
    x = torch.rand(N_CLIENTS, 2 * N_CLASSES, *shape, generator=torch.Generator().manual_seed(0))
    y = torch.arange(2 * N_CLASSES).expand(N_CLIENTS, -1) % N_CLASSES
    data = ClientData({"x": x, "y": y.clone()}, torch.full((N_CLIENTS,), 2 * N_CLASSES))
    task = Classification(N_CLASSES, {"x": x[:1], "y": y[:1].clone()})

    def row(name: str, method: type[Method]) -> dict[str, str]:
        def build() -> SplitModel:
            if method.defaults.get("model") == "vit":
                return FrozenViT(shape, N_CLASSES, ViTOptions(backbone=TINY, input_size=8))
            return ConvNet(shape, N_CLASSES, ConvNetOptions())

        training = Training(batch_size=10, epochs=method.defaults.get("epochs", 2))
        return _sent(name, method, build, task, data, training)

    ours = {n: m for n, m in METHODS.items() if m.__module__.startswith("vision.methods.")}
    return markdown([row(name, m) for name, m in ours.items()])


def _sent(
    name: str,
    method: type[Method],
    build: Callable[[], SplitModel],
    task: Task,
    data: ClientData,
    training: Training,
) -> dict[str, str]:
    """Return the row of a method, after two rounds."""
    # One step suffices where a method does many, as none sends anything.
    many = [
        f.name
        for f in dataclasses.fields(method.Options)
        if f.name.endswith(("_steps", "server_epochs"))
    ]
    options = method.Options(**dict.fromkeys(many, 1))
    made = method(Population(build), task, training, options)
    up, down = set[str](), set[str]()

    def watched(cohort: Cohort, payload: Payload) -> Payload:
        upload = made.local_update(cohort, payload)
        up.update(upload)
        down.update(payload)
        return upload

    federation = Federation(overridden(made, local_update=watched), data)
    federation.run_round()
    report = federation.run_round()
    floats = [f"{n / N_CLIENTS / 4:,.0f}" for n in (report.bytes_up, report.bytes_down)]
    return {
        "method": f"`{name}`",
        "a client sends": parts_in_words(up),
        "the server sends": parts_in_words(down),
        "floats a round, up / down": " / ".join(floats),
        "sums suffice": {"none": "no"}.get(method.sends.sums, "yes") if up else "-",
        "needs": ", ".join(method.needs.data) or "-",
    }


def parts_in_words(names: Collection[str]) -> str:
    """Name the parts of a message in words, the model's first.

    >>> parts_in_words(["encoder.0.weight", "head.bias", "control.head.bias"])
    'model, control'
    >>> parts_in_words(["counts", "encoder.0.weight"]), parts_in_words([])
    ('encoder, counts', 'nothing')
    """
    found = {n.replace("/", ".").partition(".")[0].replace("_", " ") for n in names}
    halves = sorted(found & {"encoder", "head"})
    model = ["model"] if len(halves) == 2 else halves
    return ", ".join([*model, *sorted(found - set(halves))]) or "nothing"
