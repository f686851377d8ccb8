"""Training of a federated method, here or in actors, and the trained method as a predictor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from data_prep.base.errors import InputError, Words, counted
from data_prep.base.progress import noting
from stforecast.bench import LOCAL
from stforecast.data.anchors import with_anchors
from stforecast.data.clients import Cells, Partition, stacked
from stforecast.data.clock import Calendar
from stforecast.data.prepared import PreparedSeries
from stforecast.data.window_spec import ModelWindow
from stforecast.data.windows import History
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.method import COHORT, ROWS_ON_CPU, Method, of_clients, predictions_of
from stforecast.federated.core.mixed_models import check_shares_no_encoder
from stforecast.federated.core.population import Population
from stforecast.federated.core.state import KIND, State
from stforecast.federated.engine.rounds import Federation, RoundReport
from stforecast.federated.engine.sizing import parse_bytes, pick_device, release_pages
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.nodes.received import behind_link
from stforecast.federated.runs.model_files import AGAIN, check_shapes, from_arrays, to_arrays
from stforecast.federated.runs.unfinished_run import Checkpointer
from stforecast.forecasting.config import Config
from stforecast.forecasting.mixed_forecasts import Mixture
from stforecast.forecasting.new_cells import fill_before, filled_weight
from stforecast.forecasting.task import ForecastTask, client_data
from stforecast.methods import METHODS
from stforecast.methods.mixing import EXPECTED, EXPERTS, MixesForecasts
from stforecast.models import build_model
from stforecast.models.mixed import Mixed, unread_services

BLOCK = 2**26
"""Bytes of the inputs, and of what a mixture holds, of forecasts that are made at a time.

Cutting the inputs takes several times as much as they do.
"""

WHOLE = 2**29
"""Most bytes of inputs that stay in memory; more are cut for a cohort at a time."""


FORMER = "former/"
"""Begin of the names of saved arrays of the model before refits."""

SERVER, RECEIVED = "server/", "from-server/"
"""Begin of the names of saved arrays of the server's state; on a node, of what its clients received
instead, one row for each, or one for all if these are equal."""


@contextmanager
def trainers(config: Config, n_clients: int) -> Iterator[Callable[..., Trainer]]:
    """Give what makes the trainer of a run, which works within the context.

    Raises:
        InputError: if the engine is ray and it is not installed, the method cannot be split, or
            there are fewer clients or cores than actors.
    """
    run = config.run
    if run.engine == LOCAL or not config.federated:
        yield Trainer
        return
    # Importing them takes a while.
    from stforecast.bench.ray_actors import ray_actors
    from stforecast.federated.engine.actors import check_parts, spread_trainer

    if METHODS[config.method].pooled:
        raise InputError(
            f"{config.method} trains one client on the data of all, which actors cannot share; ",
            Words("leave out {engine}"),
        )
    check_parts(run.actors, n_clients)
    threads = run.workers or 1
    with ray_actors(run.actors, threads, n_clients) as actors:

        def make_trainer(*args: Any, **options: Any) -> Trainer:
            fixed = {"actors": actors, "workers": threads, "device": "cpu"}
            return spread_trainer(*args, **{**options, **fixed})

        yield make_trainer


@dataclass(frozen=True, eq=False)
class TrainedMethod:
    """A method with its trained state; a `stforecast.forecasting.fit.Predictor`.

    Attributes:
        config: settings of the run.
        method: the method, with its model.
        snapshot: states of clients and server after the selected round.
        clients: the client of each cell.
        view: name of the method's model that predicts; by default its first.
        former: the model before refits, whose errors weigh what is mixed: those of a refitted one
            are small where it was trained. None without a refit, or where nothing is mixed.
        of_node: whether its method is `behind_link`, as on a node of a federation.
    """

    config: Config
    method: Method
    snapshot: State
    clients: Partition
    view: str | None = None
    former: TrainedMethod | None = None
    of_node: bool = False

    reads_windows: ClassVar[bool] = True

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the quantiles that the model forecasts; none if it forecasts one value."""
        return self.config.loss.levels

    @property
    def round(self) -> int:
        """Round of its state."""
        return self.snapshot.round

    @property
    def unread(self) -> tuple[str, ...]:
        """Further services of the windows that no client's model reads."""
        model = self.method.population.model
        if not isinstance(model, Mixed):
            return ()
        present = self.snapshot.clients.buffers[KIND].unique().tolist()
        return unread_services([model.kinds[kind] for kind in present], self.config.window)

    def predict(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast `(cells, windows, horizon)`; see `Predictor.predict`."""
        return self.quantiles(series, starts, calendar)[..., len(self.levels) // 2]

    def quantiles(self, series: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
        """Forecast the quantiles of windows at `levels`, sorted in case the model's cross.

        Sorting never makes quantiles worse (Chernozhukov, Fernández-Val, Galichon, Econometrica
        78, 2010). Arguments and result are those of `Predictor.quantiles`.
        """
        n_cells = series.shape[1]
        if not self.clients.by_cell:
            return self._quantiles(series, starts, calendar, torch.arange(n_cells))
        of_cell = 4 * max(len(starts), 1) * self.config.window.n_inputs
        of_cell += self.mixture.bytes_of_cell(starts, calendar)
        size = max(BLOCK // of_cell // COHORT, 1) * COHORT
        found: np.ndarray | None = None
        for places in noting(torch.arange(n_cells).split(size), "forecasting"):
            cells = places.numpy()
            part = self._quantiles(series[:, cells], starts, calendar.of_cells(cells), places)
            if found is None:
                found = np.empty((n_cells, *part.shape[1:]), part.dtype)
            found[cells] = part
            self.release()
        assert found is not None
        return found

    def of_cells(self, some: slice | np.ndarray) -> TrainedMethod:
        """Return what forecasts some cells, if each is a client, with the state of these alone."""
        ids, whole = torch.arange(len(self.snapshot.clients))[some], self.snapshot
        state = dataclasses.replace(whole, clients=whole.clients.take(ids), received={})
        state.clients.moments = {}
        former = self.former and self.former.of_cells(some)
        method = of_clients(self.method, ids)
        return dataclasses.replace(self, snapshot=state, method=method, former=former)

    def _quantiles(
        self, series: np.ndarray, starts: np.ndarray, calendar: Calendar, ids: Tensor
    ) -> np.ndarray:
        """Forecast the quantiles of the clients `ids`, of whose cells alone the series is."""
        outputs = self._mixed(series, starts, calendar, ids)
        if (expected := self.snapshot.clients.memory.get(EXPECTED)) is not None:
            filled, until = fill_before(series, calendar, expected[ids].cpu().numpy())
            if len(some := np.flatnonzero(until > min(starts, default=0))):
                of = filled[:, some], starts, calendar.of_cells(some), ids[some], series[:, some]
                weight = filled_weight(self.config.window.horizon, calendar.step)
                share = weight * (starts < until[some, None])[..., None]
                outputs[some] += share * (self._mixed(*of) - outputs[some])
        ordered = np.sort(outputs.reshape(*outputs.shape[:2], -1, self.config.loss.n_outputs))
        ordered = calendar.off_wall_clock(ordered, starts)
        return with_anchors(ordered, series, starts, self.config.window.target, calendar)

    def _mixed(
        self,
        series: np.ndarray,
        starts: np.ndarray,
        calendar: Calendar,
        ids: Tensor,
        observed: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the outputs mixed with others; of a filled series, `observed` is what was not."""
        history = History.of(series, self.config.window, calendar)
        outputs, mixture = self._outputs(history, starts, ids), self.mixture
        if not mixture.usual_weights(calendar.step):
            return outputs
        known, former = mixture.known_windows(starts, calendar), self.former or self
        own = former._outputs(history, known, ids)
        plain: np.ndarray | None = None
        if self.config.window.n_special:
            both = (former, known), (self, starts)
            of = [m._outputs(history, s, ids, plain=True) for m, s in both]
            plain = np.concatenate(of, axis=1)
        return mixture.mixed(own, outputs, history, starts, plain, observed)

    @property
    def mixture(self) -> Mixture:
        """What is mixed with its forecasts; nothing if another of the method's models predicts."""
        n_levels = self.config.loss.n_outputs
        if self.view not in (None, self.method.views[0]):
            return Mixture(self.config.window, n_levels)
        windows = (self.former or self).snapshot.clients.sizes[0] // int(self.clients.sizes[0])
        n_trained = int(windows) + self.config.window.horizon - 1
        return Mixture.of(self.method, self.config.window, n_levels, len(self.clients), n_trained)

    def _outputs(
        self, history: History, starts: np.ndarray, ids: Tensor, *, plain: bool = False
    ) -> np.ndarray:
        """Return the model's outputs for windows, `(cells, windows, horizon * n_outputs)`.

        The second expert's follow the first's. `plain` ones are as if no holiday or
        event were known. Only the inputs of a block of windows are in memory.
        """
        of_window = 4 * history.z.shape[1] * self.config.window.n_inputs
        size = max(BLOCK // of_window // ROWS_ON_CPU, 1) * ROWS_ON_CPU
        blocks = [starts[i : i + size] for i in range(0, max(len(starts), 1), size)]
        outputs = []
        for block in blocks:
            x = history.inputs(history.sources(block))
            if plain:
                x[..., self.config.window.special] = 0.0
            outputs.append(self._outputs_of_inputs(x, ids))
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=1)

    def _outputs_of_inputs(self, x: np.ndarray, ids: Tensor) -> np.ndarray:
        """Return the outputs for windows whose inputs `x` are in memory together."""
        sizes = torch.full((len(x),), x.shape[1])
        state = self.snapshot
        tensors = [*state.server.values(), *state.clients.params.values()]
        # Some of the server's tensors stay on the CPU, such as the run's seed.
        device = next((t.device for t in tensors if not t.is_cpu), torch.device("cpu"))
        of_cells = ClientData({"x": torch.from_numpy(x)}, sizes)
        data = self.clients.join(of_cells).to(device)
        n_outputs = self.config.window.horizon * self.config.loss.n_outputs
        has_experts = self.mixture.has_experts
        n_outputs *= 2 if has_experts else 1
        view = EXPERTS if has_experts else self.view
        outputs = torch.empty(*x.shape[:2], n_outputs)
        for part in data.cohorts(COHORT) if outputs.numel() else ():
            found = predictions_of(self.method, state, data, ids[part], view, rows=part)
            forecasts = torch.cat([forecast.cpu() for _, forecast in found], dim=1)
            self.clients.scatter(forecasts, part, outputs)
        return outputs.numpy()

    def release(self) -> None:
        """Take what it holds in files out of the memory, until it is read again."""
        for of in (self, self.former or self):
            release_pages(of.snapshot.clients.memory.values())

    def state(self) -> dict[str, np.ndarray]:
        """Return the state that prediction needs, as plain arrays."""
        former = {} if self.former is None else self.former.state()
        further = {FORMER + name: values for name, values in former.items()}
        arrays = to_arrays(self.method, self.snapshot)
        return {**(_received(arrays) if self.of_node else arrays), **further}

    def refitted(self, snapshot: State, method: Method | None = None) -> TrainedMethod:
        """Return the method after a refit; by that `method`, if it was not the same."""
        weighs = isinstance(self.method, MixesForecasts) and (
            self.method.has_experts or self.method.mixes_pretrained
        )
        former = (self.former or self) if weighs else None
        return dataclasses.replace(
            self,
            snapshot=snapshot,
            former=former,
            method=method or self.method,
            of_node=self.of_node and method is None,
        )

    @classmethod
    def from_state(
        cls, config: Config, arrays: Mapping[str, np.ndarray], round: int, clients: Partition
    ) -> TrainedMethod:
        """Restore a trained method from the arrays of `state`, on the configured device.

        Raises:
            InputError: if the arrays do not fit the configured model or are not finite.
        """
        held = {n.removeprefix(FORMER): a for n, a in arrays.items() if n.startswith(FORMER)}
        former = cls.from_state(config, held, round, clients) if held else None
        arrays = {name: a for name, a in arrays.items() if not name.startswith(FORMER)}
        of_node = any(name.startswith(RECEIVED) for name in arrays)
        if of_node:
            arrays = _as_server(arrays, len(clients))
        snapshot = from_arrays(arrays, round, config.run.seed, pick_device(config.run.device))
        largest = int(clients.sizes.max())
        # The state holds the roads.
        method = build_method(config, [Cells(largest, np.zeros((largest, largest)))])
        check_shapes(method, arrays, len(clients))
        method = behind_link(method) if of_node else method
        return cls(config, method, snapshot, clients, former=former, of_node=of_node)


def _received(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays whose server's state is what each client of a node received, to save them."""
    found = {}
    for name, rows in arrays.items():
        if not name.startswith(SERVER):
            found[name] = rows
            continue
        equal = (rows == rows[:1]).all()
        found[RECEIVED + name.removeprefix(SERVER)] = rows[:1] if equal else rows
    return found


def _as_server(arrays: Mapping[str, np.ndarray], n_clients: int) -> dict[str, np.ndarray]:
    """Restore the arrays that `_received` was given.

    Raises:
        InputError: if one has not a row for each client.
    """
    found = {}
    for name, rows in arrays.items():
        own = name.replace(RECEIVED, SERVER, 1) if name.startswith(RECEIVED) else name
        if own != name and (not rows.ndim or len(rows) not in (1, n_clients)):
            raise InputError(
                f"{name} has shape {rows.shape}, expected a row for each of "
                f"{counted(n_clients, 'client')}; {AGAIN}"
            )
        found[own] = np.broadcast_to(rows, (n_clients, *rows.shape[1:])) if own != name else rows
    return found


def build_method(config: Config, clients: Sequence[Cells] = ()) -> Method:
    """Build the configured method with a new model.

    `clients` are the cells of each; none if each cell is a client, or for a server, which does not
    know them.
    """
    window = config.window
    task = ForecastTask(window.period, config.loss, window)
    population = build_population(config, clients or [Cells(1, np.zeros((1, 1)))])
    method = METHODS[config.method](population, task, config.training, config.method_options)
    if isinstance(population.model, Mixed):
        check_shares_no_encoder(method)
    return method


def build_population(config: Config, clients: Sequence[Cells]) -> Population:
    """Build a new model for the clients; where it is of their cells, each begins with its own.

    Its tensors have the shapes of the client with most cells. A client's own tensors are those of
    a model of its cells alone, so they do not depend on other clients.
    """
    window, name, run = config.window, config.run.model, config.run
    wide = {"horizon": window.horizon * config.loss.n_outputs}
    outputs = ModelWindow(**{**vars(window), **wide}, n_levels=config.loss.n_outputs)

    def of(cells: Cells, own: Mapping[str, Tensor] | None = None) -> Population:
        held = None if config.clients == "cell" else cells
        return Population(
            partial(build_model, name, outputs, config.model_options, held),
            run.seed, config.training.mixed_precision, own,
        )  # fmt: skip

    largest = max(clients, key=lambda cells: cells.n)
    population = of(largest)
    if isinstance(population.model, Mixed):
        kinds = population.model.kinds_of_clients([cells.model for cells in clients])
        population.own = {KIND: kinds}
        return population
    if largest.model:
        raise InputError(
            f"the file of clients has a column model, but the model of all is {name}; ",
            Words("set {model:mixed} and {models}, or leave the column out"),
        )
    prefixes = population.model.own
    if config.clients == "cell" or not prefixes:
        return population
    each = [
        {n: t for n, t in of(cells).initial().items() if n.startswith(prefixes)}
        for cells in clients
    ]
    like = population.initial()
    return of(largest, stacked(each, {name: like[name] for name in each[0]}))


def train(
    config: Config,
    data: PreparedSeries,
    after_round: Callable[[RoundReport], None] | None = None,
    checkpointer: Checkpointer | None = None,
) -> tuple[dict[str, TrainedMethod], Federation]:
    """Train the configured method on the training part and track its validation loss.

    Returns:
        The method after the `last` and after the `best` round (the last one, if there is no
        validation part), and e.g. `last (global)` for its other models; and the federation with its
        reports.
    """
    method = build_method(config, cells_of_clients(config, data))
    with trainers(config, len(data.clients)) as make_trainer:
        federation = federate(
            config, method, data, data.split.train, data.split.validation, make_trainer
        )
        if checkpointer:
            checkpointer.note_data(*data.series.identity(), further=data.identity())
            checkpointer.run(federation, after_round)
        else:
            federation.run(after_round)
        last = federation.ready()
    best = federation.best
    # With the optimiser's moments, which the best round lacks, a refit would go on differently.
    same = best is None or (best.round == last.round and not last.clients.moments)
    trained = {}
    for view in method.views:
        further = "" if view == method.views[0] else f" ({view})"
        models = [
            TrainedMethod(config, method, s, data.clients, view) for s in (last, best or last)
        ]
        trained[f"last{further}"] = models[0]
        trained[f"best{further}"] = models[0] if same else models[1]
    order = [name for which in ("last", "best") for name in trained if name.startswith(which)]
    return {name: trained[name] for name in order}, federation


def cells_of_clients(config: Config, data: PreparedSeries) -> Sequence[Cells]:
    """Return the cells of each client; none if each cell is a client with the same model."""
    if config.clients == "cell" and config.run.model != Mixed.name:
        return ()
    return data.clients.of_clients(data.series.adjacency)


def federate(
    config: Config,
    method: Method,
    data: PreparedSeries,
    train: np.ndarray,
    validation: np.ndarray,
    make_trainer: Callable[..., Trainer] = Trainer,
) -> Federation:
    """Build the federation of a method and its clients' samples, before the first round.

    `train` and `validation` are first target steps `(windows,)`, of which the latter may be empty.
    """
    samples = client_samples(method, data, train, validation)
    return Federation(
        method,
        *samples,
        seed=config.run.seed,
        device=pick_device(config.run.device),
        cohort_size=config.run.cohort or None,
        uplink=config.uplink,
        robust=config.robust,
        workers=config.run.workers or torch.get_num_threads(),
        memory=parse_bytes(config.run.memory) if config.run.memory else None,
        make_trainer=make_trainer,
    )


def client_samples(
    method: Method, data: PreparedSeries, train: np.ndarray, validation: np.ndarray
) -> tuple[ClientData, ClientData | None]:
    """Return the clients' training and validation samples; arguments as in `federate`."""

    def samples(starts: np.ndarray, *, with_next: bool = False) -> ClientData:
        cut, places = data.cutter(starts, with_next=with_next), data.series.locations
        n_cells = data.z.shape[1]
        n_bytes = 4 * n_cells * len(starts) * (data.window.n_inputs * (1 + with_next))
        if n_bytes <= WHOLE or not data.clients.by_cell:
            return data.clients.join(client_data(cut(None), places))

        def of_cells(ids: Tensor) -> dict[str, Tensor]:
            some = ids.numpy()
            return client_data(cut(some), None if places is None else places[some]).tensors

        return ClientData({}, torch.full((n_cells,), len(starts)), cut=of_cells)

    return (
        samples(train, with_next=method.needs.next_windows),
        samples(validation) if len(validation) else None,
    )
