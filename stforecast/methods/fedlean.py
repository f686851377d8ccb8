"""FedLean: a linear map in one round, a small network for the rest, a correction on each client.

Ours, and the default. Most of a traffic forecast is linear in the last week of readings, which
differ from the newest one by a level that drifts. So everything is relative to the newest reading
r: of a window with inputs x, known inputs (calendar) c and targets y,

    y ≈ r + z W + f(x') + z Dₙ,    z = (1, x - r, b(c)),    x' = (x - r, r, time of day).

b(c) are the known inputs and their products with those that follow the time of day, so that z W has
a daily profile for each weekday. The network f does not read the weekday: all cells share the few
days of training.

1. In the first round, client n sends the mean products `Gₙ = E[z zᵀ]` and `Mₙ = E[z (y - r)ᵀ]` of
   its windows. Their means over clients, weighted by windows, are those of the pooled windows; so
   `W = (G + ridge I)⁻¹ M` is the ridge regression of the participants' data, without an iteration.
   The intercept has a millionth of the penalty. The client's mean week of targets goes with them,
   for the first days of cells that come later (`stforecast.forecasting.new_cells`).
2. In all further rounds, 40 by default, FedAvg trains f, the run's model, on what W leaves. Its
   head begins at 0. The default perceptron drops a tenth of its units in training. Few cells
   overfit sooner, so there are at most `rounds_per_cell` of these rounds for each cell. Of more
   than `participants` clients, a round trains that many, drawn anew. Each 20th is validated; of
   more than five times `participants` clients, the last one alone.
   A model that subtracts r itself must not here: `--model linear` needs `--normalise none`.
3. Windows of two weeks of training or more also read the cell's weekly profile and how far the
   cell has been from it, see `stforecast.data.weekly_profile`. It tells most where weeks repeat,
   and misleads in weeks that are unlike any other, such as those of Christmas. So there are two
   maps W of the same sums: a steady one that does not read the profile, and one that does. Their
   forecasts are mixed, for each cell, by the errors of its last seven days that are known; see
   `stforecast.forecasting.mixture`. In training, f learns what their mean leaves. The profile is
   mixed in itself, too: where nothing drifts, the newest reading tells no more than it.
4. Before it forecasts, client n corrects the map on its own residuals e = y - r - z W - f(x'):
   `Dₙ = (Gₙ + shrinkage diag Gₙ)⁻¹ E[z eᵀ]`, for each map W. Dₙ never leaves the client. All
   quantiles of a step have the correction of the middle one: their own would draw them to the mean.
   The network's loss makes forecasts medians. With `forecast` mean, the correction's intercept is
   hardly penalised, so a client's forecasts have the mean of its values, and so do their sums.
   Those of more than `MANY` clients are kept in half precision.
5. Last, the forecasts of a network that was trained on simulated traffic alone, see
   `stforecast.baselines.pretrained`, are mixed in by the same errors. It knows days and weeks of
   many kinds, which helps most where the training part is short or the horizon long. The client
   computes them from its own readings, and nothing is sent. Of more than 300 cells, whose own data
   teach more, it is left out, as it takes long, and where means are forecast, which it does not.
   The effect of holidays and events on the maps is added to it and to the profile, which know none.
   Where anything is mixed in, so are the newest reading and what the forecast's own errors of
   the last days tell of its level, its amplitude and the time of day: levels shift, and roads and
   cells get busier or less so.
6. Before the test part, the newest data are learnt, too (`refit`): the first round is repeated with
   them, a few more rounds train f, and clients correct the maps again.

Where the run's `target` is a difference already, r is not added. A ridge regression of sums is that
of Nikolaenko et al., "Privacy-Preserving Ridge Regression on Hundreds of Millions of Records", IEEE
S&P 2013. Subtracting the newest reading is NLinear's normalisation (Zeng et al., AAAI 2023). A
linear path beside a perceptron is TiDE's (Das et al., TMLR 2023). Penalising Dₙ draws a client's
map towards W, as in Evgeniou, Pontil: Regularized Multi-Task Learning, KDD 2004.

Gₙ and Mₙ give readings up. Their products of readings with the intercept and the calendar, which
everyone knows, are linear in the readings, and there are thousands of them: with four weeks of
records they determine all readings of a cell to a hundredth of a standard deviation, with nine
weeks the first and the last. Summed over cells they determine the mean of the cells in the same
way, and the products of readings with each other then determine each of a few cells. The server
needs only sums over clients, so secure aggregation hides more the more cells take part, and nodes
want nine at least; see the benchmark `disclosure` and docs/security.md. Clipping, noise and
quantisation work as for any upload; eigenvalues of G below 0 count as 0.

A window without an observed target counts as 0 in Gₙ and Mₙ, so a cell that begins late weighs
less. Where some steps of a window were not observed, a step's column of Mₙ is a mean over fewer
windows than Gₙ, so W is not exactly the ridge regression of the observed targets.

Which part brings how much: the benchmark `fedlean` and docs/results/default.md.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.data.anchors import LEVEL
from stforecast.data.clock import CALENDAR_INPUTS
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.data import ClientData, shuffled
from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Clients, Cohort, Participants
from stforecast.federated.core.tensors import Batch, Params, Payload, weighted_mean
from stforecast.federated.core.training import BETAS, EPSILON, Training
from stforecast.federated.kernels.perceptron import EpochKernel, epoch_usable
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.robust import RULES
from stforecast.forecasting.task import ForecastTask
from stforecast.methods.mixing import EXPERTS, WEEK, MixesForecasts
from stforecast.models.linear import MLP

DAY_CYCLES = 4
"""Number of known inputs that follow the time of day; they come first."""


@dataclass(frozen=True, eq=False)
class RelativeInputs:
    """Inputs of windows, whose readings are relative to the newest one.

    Attributes:
        x: `(clients, batch, inputs)`.
        window: shape of the windows.
    """

    x: Tensor
    window: WindowSpec

    @property
    def base(self) -> Tensor:
        """What forecasts are relative to, `(clients, batch, 1)`.

        It is the newest reading, or 0 where the targets are differences already.
        """
        return self._newest if self.window.target == LEVEL else torch.zeros_like(self._newest)

    @cached_property
    def linear(self) -> Tensor:
        """A linear map's inputs, `(clients, batch, n_linear)`.

        They are a 1, the readings less the newest one (which is 0 itself), `calendar_basis` of the
        inputs known in advance, and those of the profile.
        """
        n_calendar = self.window.n_known - self.window.n_profile
        known, profile = self._known.tensor_split([n_calendar], dim=-1)
        calendar = calendar_basis(known, n_cycles(self.window))
        intercept = torch.ones_like(self._newest)
        return torch.cat([intercept, self._differences, calendar, profile], dim=-1)

    @property
    def network(self) -> Tensor:
        """The network's inputs, `(clients, batch, inputs)`.

        They are the readings less the newest one, which is in its own place as it is, and the time
        of day. Other inputs known in advance are 0, since all cells share the few days of training
        and a network learns these by heart.
        """
        network = torch.cat([self._differences, self._known], dim=-1)
        network[..., newest_place(self.window)] = self._newest[..., 0]
        network[..., self.window.n_readings + n_cycles(self.window) :] = 0
        return network

    @property
    def hour(self) -> Tensor:
        """Hours from Monday to first targets, `(clients, batch)`; of the day if no more is read."""
        hour = torch.atan2(self._known[..., 0], self._known[..., 1]) * 12 / torch.pi
        hour = (hour + 24.001).long() % 24  # An angle may be rounded down.
        if self.window.calendar != "weekdays":
            return hour
        return hour + 24 * self._known[..., DAY_CYCLES : DAY_CYCLES + 7].argmax(-1)

    @property
    def _newest(self) -> Tensor:
        place = newest_place(self.window)
        return self.x[..., place : place + 1]

    @property
    def _differences(self) -> Tensor:
        return self.x[..., : self.window.n_readings] - self._newest

    @property
    def _known(self) -> Tensor:
        return self.x[..., self.window.n_readings :]


@lru_cache
def newest_place(window: WindowSpec) -> int:
    """Return the place of the newest reading among the inputs."""
    return window.all_lags.index(min(window.all_lags))


def n_cycles(window: WindowSpec) -> int:
    """Return the number of known inputs that follow the time of day."""
    return min(DAY_CYCLES, CALENDAR_INPUTS[window.calendar])


def calendar_basis(known: Tensor, cycles: int) -> Tensor:
    """Return the known inputs and their products with those that follow the time of day.

    A linear map of them has a daily profile for each kind of day, where one of the known inputs
    alone has the same profile every day, and twice as many cycles a day.

    Args:
        known: `(…, known)` inputs known in advance.
        cycles: number of those that follow the time of day.

    Returns:
        `(…, known + products)`.
    """
    products = [known[..., i : i + 1] * known[..., i:] for i in range(cycles)]
    return torch.cat([known, *products], dim=-1)


def n_linear(window: WindowSpec) -> int:
    """Return the number of linear inputs of a window."""
    known = torch.zeros(window.n_known - window.n_profile)
    of_calendar = calendar_basis(known, n_cycles(window)).shape[-1]
    return 1 + window.n_inputs - len(known) + of_calendar


MAP, OWN = "map", "map.own"
"""Names of W on the server and of Dₙ in a client's memory, `(n_linear, outputs)` each.

If the windows read a profile, the columns of the steady map come first, then as many of the map
that reads the profile. The rows of the profile are 0 in the steady map.
"""

PRODUCTS, MOMENTS, HOURS = "products", "moments", "hours"
"""Names of Gₙ, its upper triangle, of Mₙ and of the mean week in the upload of the first round.

The server has no tensor of these names, as norms of uploads may be bounded by its own."""

SELDOM = 0.2
"""Share of the clients in a round below which they keep no moments and few rounds are validated."""

MANY = 10_000
"""Most clients whose corrections are kept in single precision: those of more take gigabytes."""

CHUNK = 1024
"""Windows of a client whose products are summed at a time."""


@dataclass(frozen=True)
class FedLeanOptions(CheckedOptions):
    """Settings of FedLean.

    Attributes:
        ridge: penalty of the common linear map, in variances of a series.
        shrinkage: penalty of a client's own correction, in mean squares of its inputs; 0 leaves
            corrections out.
        rounds_per_cell: the network is trained for at most this many rounds times the number of
            cells, even if `rounds` is larger.
        participants: at most this many clients train in a round after the first; of more, each
            round draws others, so that its time does not grow with the number of cells. Of more
            than ten times as many, the first round draws participants, too.
        forecast: `median`: near the value that half of the readings exceed, for a small MAE;
            `mean`: sums over cells and days are right where readings are skewed, such as counts
            with bursts, for a plan of volume.
        pretrained: `mixed`: medians of up to 300 cells are mixed with the forecasts of a network
            that was trained on simulated traffic (`stforecast.baselines.pretrained`), for each cell
            by the errors of its last seven days that are known; `none`: they are not.
    """

    ridge: PositiveFloat = 1.0
    shrinkage: NonNegativeFloat = 10.0
    rounds_per_cell: PositiveInt = 5
    participants: PositiveInt = 100
    forecast: Literal["median", "mean"] = "median"
    pretrained: Literal["mixed", "none"] = "mixed"


class FedLean(MixesForecasts, FedAvg):
    """Ridge regression of summed products, then FedAvg of what it leaves, then own corrections."""

    name = "fedlean"
    summary = "ridge regression in one round, FedAvg of a small network on the rest (ours)"
    paper = "this package"
    attacked = Attacked(guards=RULES, discloses="readings")
    sums_first = True
    views: ClassVar[tuple[str, ...]] = ("personal",)
    Options = FedLeanOptions
    task: ForecastTask
    options: FedLeanOptions
    defaults: ClassVar[Mapping[str, Any]] = {
        "model": "mlp",
        "dropout": 0.1,
        "closeness": 1,
        "periods": 0,
        "extra_lags": "auto",
        "calendar": "auto-weekdays",
        "impute": "newest",
        "profile": "auto",
        "loss": "huber",
        "lr": 4e-3,
        "schedule": "cosine",
        "batch_size": 32,
        "shuffle": True,
        "drop_last": False,
        "rounds": 41,
        "select": "last",
        "refit": "once",
        "refit_rounds": 5,
    }

    def __init__(self, *args: Any, **further: Any) -> None:
        super().__init__(*args, **further)
        self.personalises = self.options.shrinkage > 0
        self.remembers = bool(self.population.model.own)

    @classmethod
    def training_for(cls, training: Training, n_series: int, options: FedLeanOptions) -> Training:
        """Return the settings for so many cells: fewer rounds for few, a share of many in each.

        A client that seldom takes part keeps no moments of its optimiser meanwhile. If fewer than a
        tenth of the clients take part, the first round, too, draws them, as their sums suffice.
        """
        rounds = min(training.rounds, 1 + options.rounds_per_cell * n_series)
        share = min(training.participation, options.participants / n_series)
        kept = training.optimizer_state if share >= SELDOM else "round"
        everyone = training.full_start and share >= 0.1
        return dataclasses.replace(
            training,
            rounds=rounds,
            participation=share,
            optimizer_state=kept,
            full_start=everyone,
        )

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """Return the initial model, its head 0, and a map of zeros.

        Raises:
            InputError: if no round trains the network, which alone tells quantiles apart.
        """
        if self.task.n_outputs > self.task.window.horizon and self.training.rounds == 1:
            raise InputError(
                f"{self.name} has quantiles of its network, which is not trained in the first "
                "round, and there is 1 round; ",
                Words("set {rounds} to 2 or more, or use another {loss}"),
            )
        for name, t in clients.params.items():
            if name.startswith("head."):
                clients.params[name] = torch.zeros_like(t[:1]).expand_as(t)
        server = super().init(clients, sizes, seed)
        week = {WEEK: torch.zeros(7 * 24, device=clients.device)} if self._sends_week else {}
        return {**server, MAP: torch.zeros(self._shape, device=clients.device), **week}

    def fitted_memory(self, n_clients: int, device: torch.device) -> Params:
        """Return corrections of zeros, in half precision for more than `MANY` clients."""
        dtype = torch.float16 if n_clients > MANY else torch.float32
        return {OWN: torch.zeros(n_clients, *self._shape, dtype=dtype, device=device)}

    @property
    def _shape(self) -> tuple[int, int]:
        """Numbers of linear inputs, and of the outputs of all maps."""
        return n_linear(self.task.window), self.task.n_outputs * len(self._n_inputs)

    def broadcast(self, server: dict[str, Tensor], to: Participants) -> Payload:
        """Return the global model; nothing in the first round, whose upload does not need it."""
        return super().broadcast(server, to) if to.round > 0 else {}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Send the sums of the first round; train the network in all others."""
        if cohort.round == 0:
            return self._of_map(cohort)
        self.receive(cohort, payload)
        known = cohort.kept("known", lambda of: self._known(of, payload[MAP]))
        if self._train_by_kernel(cohort, known):
            return self.upload(cohort)
        data = self._of_network(cohort, known)
        for batch in cohort.batches(prepare=lambda _: data):
            cohort.step(self.local_loss(cohort, batch, payload))
        return self.upload(cohort)

    def _of_map(self, cohort: Cohort) -> Payload:
        """Return what the server solves for the map."""
        for batch in cohort.data.chunks(CHUNK):
            base = self._base(RelativeInputs(batch["x"], self.task.window))
            cohort.record_loss(self.task.loss(base, batch))
        return {name: t.float() for name, t in self._sums(cohort).items()}

    def _sums(self, cohort: Cohort) -> Payload:
        """Return the mean products of each client's windows."""
        products, moments = self._products(cohort.data), self._moments(cohort.data, self._base)
        row, column = torch.triu_indices(*products.shape[1:])
        week = {HOURS: self.mean_week(cohort.data)} if self._sends_week else {}
        return {PRODUCTS: products[:, row, column], MOMENTS: moments, **week}

    @property
    def _sends_week(self) -> bool:
        """Whether windows tell the hour of their targets, which are no differences."""
        return self.task.window.calendar != "none" and self.task.window.target == LEVEL

    @torch.no_grad()
    def mean_week(self, data: ClientData) -> Tensor:
        """Return the mean first target at each hour of the week, `(clients, 168)`.

        An hour with fewer than two has the mean of its time of day. Where one hour alone has a
        single target, this is left out of that mean, from which all other sums can be subtracted.
        """
        parts = []
        for batch in data.chunks(CHUNK):
            y, seen = batch["y"][..., 0], batch["mask"][..., 0]
            values = torch.stack([torch.where(seen, y, 0.0), seen.to(y)])
            hour = RelativeInputs(batch["x"], self.task.window).hour.expand_as(values)
            parts.append(y.new_zeros(2, len(y), 7 * 24).scatter_add_(2, hour, values))
        sums = torch.stack(parts).sum(0).unflatten(-1, (7, 24))
        single = sums[1] == 1
        only = single & (single.sum(-2, keepdim=True) == 1)
        of_day = torch.where(only, 0.0, sums).sum(-2, keepdim=True)
        sums = torch.where(sums[1] > 1, sums, of_day)
        total, count = torch.where(sums[1] > 1, sums, 0.0)
        return (total / count.clamp(min=1)).flatten(1)

    @torch.no_grad()
    def _known(self, cohort: Cohort, common: Tensor) -> Tensor:
        """Return `r + z W` of each sample, which no later round changes, `(clients, samples, …)`.

        The network adds to it. It depends on windows and W alone, so a process keeps it.
        Client by client, as a product of all may round differently in another cohort.
        """
        known = []
        for x, own in zip(cohort.data.tensors["x"], common, strict=True):
            inputs = RelativeInputs(x[None], self.task.window)
            known.append(self._mean(inputs.linear[0] @ own + inputs.base[0]))
        return torch.stack(known)

    @torch.no_grad()
    def _of_network(self, cohort: Cohort, known: Tensor) -> ClientData:
        """Return the samples of an epoch as the network needs them: `x` is x'."""
        data = cohort.data
        network = RelativeInputs(data.tensors["x"], self.task.window).network
        targets = {name: data.tensors[name] for name in ("y", "mask")}
        return dataclasses.replace(data, tensors={"x": network, "known": known, **targets})

    def _train_by_kernel(self, cohort: Cohort, known: Tensor) -> bool:
        """Train the default perceptron by a compiled kernel; return whether it can."""
        training, population = cohort.training, self.population
        if population.mixed or not isinstance(population.model, MLP):
            return False
        plain = training.optimizer == "adam" and not training.clip_gradients
        plain = plain and not training.weight_decay and self.task.options.loss == "huber"
        if not plain or cohort.data.group > 1:  # A batch would hold whole groups.
            return False
        names = [f"{layer}.{name}" for layer in MLP.layers for name in ("weight", "bias")]
        layers = [cohort.params[name] for name in names]
        moments = cohort.optimizer.moments_of(names)
        if not epoch_usable(layers, moments):
            return False
        kernel = self._epoch_kernel(training.batch_size, training.drop_last)
        samples = {**cohort.data.tensors, "known": known}
        for epoch in range(training.epochs):
            cohort.epoch = epoch
            order, seeds = self._draws(cohort)
            lr = cohort.optimizer.training.lr
            losses = kernel.run(
                samples, order, seeds, layers, moments, lr=lr, betas=BETAS, eps=EPSILON
            )
            for loss in losses.unbind(1):
                cohort.record_loss(loss)
        return True

    def _epoch_kernel(self, batch_size: int, full: bool) -> EpochKernel:
        window, dropout = self.task.window, self.population.dropout
        n = window.n_readings
        return EpochKernel(
            batch_size, full, n + n_cycles(window), n, newest_place(window),
            self.task.options.huber_delta, dropout.p if dropout else 0.0,
        )  # fmt: skip

    def _draws(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Draw the order of an epoch's samples and the seeds of the units to drop."""
        n, dropout = int(cohort.data.sizes[0]), self.population.dropout
        order = torch.arange(n).expand(len(cohort), n)
        if cohort.training.shuffle:
            order = shuffled(n, cohort.generators)
        seeds = torch.zeros(len(cohort), 2, dtype=torch.long)
        for own, generator in zip(seeds, dropout.generators if dropout else (), strict=False):
            own.random_(2**32, generator=generator)
        return order, seeds

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the task's loss of the map and the network together, `(clients,)`."""
        features = self.population.encode(cohort.state, batch["x"])
        rest = self.population.decode(cohort.state, features)
        return self.recorded(cohort, batch["known"] + rest, batch)

    def aggregate(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> dict[str, Tensor]:
        """Solve for the map after the first round; average the networks after all others."""
        if of.round > 0:
            return {**server, **super().aggregate(server, of, uploads)}
        means = {name: weighted_mean(t, of.sizes) for name, t in uploads.items()}
        moments, week = means[MOMENTS], {WEEK: means[HOURS]} if HOURS in means else {}
        solved = self._solved(symmetric(means[PRODUCTS], len(moments)), moments)
        return {**server, MAP: solved, **week}

    def _solved(self, products: Tensor, moments: Tensor) -> Tensor:
        """Return the maps of the means G and M, side by side."""
        solved = moments.new_zeros(len(moments), self.task.n_outputs * len(self._n_inputs))
        of_maps = solved.split(self.task.n_outputs, dim=-1)
        for of_map, n in zip(of_maps, self._n_inputs, strict=True):
            n_profile = n - self._n_inputs[0]
            of_map[:n] = solve(products[:n, :n], moments[:n], self.options.ridge, n_profile)
        return solved

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Forecast with the common map, the network and the client's correction."""
        params = {**state, **payload}
        if OWN in state:
            params[MAP] = params[MAP] + state[OWN]
        forecasts = self._forecasts(params, RelativeInputs(x, self.task.window))
        return forecasts if view == EXPERTS else self._mean(forecasts)

    @property
    def has_experts(self) -> bool:
        """Whether one map reads the profile and one does not."""
        return len(self._n_inputs) > 1

    @property
    def mixes_pretrained(self) -> bool:
        """Whether forecasts are mixed with those of the pretrained network."""
        return self.options.pretrained == "mixed" and self.options.forecast == "median"

    @property
    def _n_inputs(self) -> tuple[int, ...]:
        """Number of linear inputs of each map."""
        n, n_profile = n_linear(self.task.window), self.task.window.n_profile
        return (n - n_profile, n) if n_profile else (n,)

    def validates(self, round: int) -> bool:
        """Return whether a round is validated: each 20th and the last; all for early stopping.

        Corrections take longer than a round.
        Of clients that seldom take part, the last round alone: it would take longer than all.
        """
        training = self.training
        in_turn = round % 20 == 1 and training.participation >= SELDOM
        return bool(training.patience) or in_turn or round == training.rounds

    def for_share(self, share: float) -> Self:
        """Return the method with a penalty of Dₙ that counts windows as those of other clients.

        E[z zᵀ] is a mean, so the penalty of fewer windows must be as many times larger. Adaptation
        to new cells calls this.

        Args:
            share: number of samples of a new client over that of a trained one.
        """
        method = copy.copy(self)
        shrinkage = self.options.shrinkage / share
        method.options = dataclasses.replace(self.options, shrinkage=shrinkage)
        return method

    @torch.no_grad()
    def personalise(self, cohort: Cohort, payload: Payload) -> None:
        """Fit each client's correction of the map to its residuals, in closed form."""
        self.population.train(False)  # Dropout would add noise to the residuals.
        params = {**cohort.state, **payload}
        moments = self._moments(cohort.data, lambda of: self._middle(self._forecasts(params, of)))
        factor = cohort.kept("factor", lambda of: self._factor(self._products(of.data)))
        cohort.memory[OWN].copy_(self._corrections(factor, moments))

    def _factor(self, products: Tensor) -> Tensor:
        """Return the Cholesky factor of `Gₙ + shrinkage diag Gₙ` of each client.

        It depends on windows alone, so a process keeps it.
        """
        diagonal = products.diagonal(dim1=-2, dim2=-1)
        added = self.options.shrinkage * diagonal.clamp(min=1e-3)
        if self.options.forecast == "mean":
            added[:, 0] *= 1e-3  # The intercept's.
        diagonal += added
        return torch.linalg.cholesky(products)

    def _corrections(self, factor: Tensor, moments: Tensor) -> Tensor:
        """Return the correction of each map by its moments, `(clients, n_linear, …)`."""
        own = torch.zeros_like(moments)
        of_maps = (t.split(self.task.n_outputs, dim=-1) for t in (own, moments))
        for of_map, part, n in zip(*of_maps, self._n_inputs, strict=True):
            # The factor of the first inputs is the first part of that of all.
            of_map[:, :n] = torch.cholesky_solve(part[:, :n], factor[:, :n, :n])
        return own

    def _forecasts(self, params: Payload, inputs: RelativeInputs) -> Tensor:
        """Return `r + z W + f(x')` of each map, with W under `MAP`, `(clients, batch, outputs)`."""
        rest = self._rest(params, inputs).repeat(1, 1, len(self._n_inputs))
        return torch.baddbmm(rest, inputs.linear, params[MAP])

    def _rest(self, params: Payload, inputs: RelativeInputs) -> Tensor:
        """Return `r + f(x')`, `(clients, batch, outputs)`."""
        features = self.population.encode(params, inputs.network)
        return self.population.decode(params, features) + inputs.base

    def _mean(self, forecasts: Tensor) -> Tensor:
        """Return the mean of the maps' forecasts."""
        if not self.has_experts:
            return forecasts
        steady, weekly = forecasts.chunk(2, dim=-1)
        return (steady + weekly) / 2

    def _middle(self, forecast: Tensor) -> Tensor:
        """Return a forecast with each step's middle level in place of all its levels."""
        n_levels = self.task.n_outputs // self.task.window.horizon
        levels = forecast.unflatten(-1, (-1, n_levels))
        middle = levels.shape[-1] // 2
        return levels[..., middle : middle + 1].expand_as(levels).flatten(-2)

    def _base(self, inputs: RelativeInputs) -> Tensor:
        """Return the newest reading, r, as the forecast of every output."""
        return inputs.base.expand(*inputs.base.shape[:2], self.task.n_outputs)

    @torch.no_grad()
    def _products(self, data: ClientData) -> Tensor:
        """Return E[z zᵀ] of each client of equal size, summed in double precision.

        Windows without an observed target count as 0 here and in `_moments`.
        """
        parts = []
        for batch in data.chunks(CHUNK):
            seen = batch["mask"].any(-1, keepdim=True)
            z = RelativeInputs(batch["x"], self.task.window).linear * seen
            parts.append((z.mT @ z).double())
        return torch.stack(parts).sum(0) / int(data.sizes[0])

    @torch.no_grad()
    def _moments(self, data: ClientData, forecast: Callable[[RelativeInputs], Tensor]) -> Tensor:
        """Return E[z (y - forecast)ᵀ] of each client, summed in double precision.

        Args:
            data: samples of clients of equal size.
            forecast: function of inputs that returns `(clients, batch, outputs)` of some maps.
        """
        parts = []
        for batch in data.chunks(CHUNK):
            inputs = RelativeInputs(batch["x"], self.task.window)
            of_maps = forecast(inputs).split(self.task.n_outputs, dim=-1)
            found = [self.task.residual(of_map, batch) for of_map in of_maps]
            error, known = (torch.cat(part, dim=-1) for part in zip(*found, strict=True))
            counts = (n.sum(1, keepdim=True) for n in (known, known.any(-1, keepdim=True)))
            parts.append(((inputs.linear.mT @ error).double(), *counts))
        moments, known, seen = (torch.stack(part).sum(0) for part in zip(*parts, strict=True))
        return moments / known.clamp(min=1) * (seen / int(data.sizes[0]))


def symmetric(triangle: Tensor, n: int) -> Tensor:
    """Return the symmetric matrix of an upper triangle.

    >>> symmetric(torch.tensor([1.0, 2.0, 3.0]), 2)
    tensor([[1., 2.],
            [2., 3.]])

    Args:
        triangle: `(n (n + 1) / 2,)`, row by row.
        n: number of rows.
    """
    row, column = torch.triu_indices(n, n)
    matrix = triangle.new_empty(n, n)
    matrix[row, column] = matrix[column, row] = triangle
    return matrix


def solve(products: Tensor, moments: Tensor, ridge: float, n_profile: int = 0) -> Tensor:
    """Solve the ridge regression `(G + ridge I) W = M`; the first input is the intercept.

    The intercept is hardly penalised, and the last inputs, of the profile, by a hundredth of the
    penalty. Eigenvalues of G below 0, which noise causes, count as 0. The lowest tells how
    strong the noise is, since G has eigenvalues near 0: twice that is the least penalty. This
    follows AdaSSP (Wang, UAI 2018), whose penalty also grows with the noise, without a share of
    the privacy budget for the smallest eigenvalue.

    Args:
        products: G, `(inputs, inputs)`.
        moments: M, `(inputs, outputs)`.
        ridge: the penalty.
        n_profile: number of inputs from the profile.

    Returns:
        W, `(inputs, outputs)`, in double precision.
    """
    values, vectors = torch.linalg.eigh(products.double())
    sound = vectors * values.clamp(min=0) @ vectors.mT
    penalty = torch.full_like(values, max(ridge, -2 * float(values[0])))
    penalty[len(penalty) - n_profile :] *= 0.01
    penalty[0] *= 1e-6  # Not 0: of noisy products the intercept's may be lost.
    solved: Tensor = torch.linalg.solve(sound + torch.diag(penalty), moments.double())
    return solved
