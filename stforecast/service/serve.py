"""Forecasts over HTTP: the model of a run, its newest history, and a description in OpenAPI.

A forecast is computed once for each history and number of steps, and kept as text for each cell. At
each request the files' times are compared, and a model or history that was replaced is read anew;
if that fails, the one before stays in service, and `/health` says so.
"""

import contextlib
import hmac
import json
import logging
import math
import re
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from data_prep.base.errors import InputError, Words, choose, some
from stforecast.data.series import Series
from stforecast.federated.runs.model_files import IN_SERVICE
from stforecast.federated.runs.run_folder import inert, read_about
from stforecast.flower.telemetry import family
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.groups import CELL, Groups, read_groups
from stforecast.forecasting.outlook import make_outlook
from stforecast.forecasting.planning import ANY
from stforecast.forecasting.results import data_of, is_model
from stforecast.forecasting.tables import in_digits
from stforecast.service.settings import FILE, ServiceSettings
from stforecast.service.timeseries import (
    ForecastAnswer,
    ForecastRequest,
    Problem,
    ProblemAnswer,
    Tables,
    answer_request,
    check_inputs,
    with_readings,
)

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts that need no token."""

OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d*)?", re.IGNORECASE)
"""What clients call a server of the loopback."""

LARGEST = 2**20
"""Bytes of a request's body, which only `FORECAST` reads."""

IN_LOG = "a file was replaced and cannot be read; the service's log says why"
"""The problem, for those without the token."""

SHORTEST = 16
"""Characters of a token."""

MOST_HORIZONS = 10
"""Most steps of a forecast, in horizons of the model."""

MEDIA = {"json": "application/json", "csv": "text/csv"}
"""Media type of each format."""

FORECAST, MODELS = "/v1/timeseries/forecast", "/v1/timeseries/models"
"""Paths of KServe's protocol, with errors of its form."""

METRICS = "service/metrics.prom"
"""What `stforecast monitor` found."""


@dataclass(frozen=True, eq=False)
class Texts:
    """A forecast as texts.

    Attributes:
        head: its JSON without the cells and the last brace.
        cells: JSON by cell.
        rows: lines of CSV by cell.
        columns: their header.
    """

    head: str
    cells: dict[str, str]
    rows: dict[str, str]
    columns: str

    def json(self, names: Iterable[str]) -> str:
        """Return the JSON of some cells."""
        own = ",".join(f"{json.dumps(name)}:{self.cells[name]}" for name in names)
        return f'{self.head},"cells":{{{own}}}}}'

    def csv(self, names: Iterable[str]) -> str:
        """Return the CSV of some cells."""
        return self.columns + "".join(self.rows[name] for name in names)

    @cached_property
    def whole(self) -> dict[str, bytes]:
        """JSON and CSV of all cells as they are sent, since most ask for these."""
        return {"json": self.json(self.cells).encode(), "csv": self.csv(self.rows).encode()}


@dataclass(eq=False)
class Loaded:
    """A model with its history, and the forecasts made so far, by steps, bounds and level."""

    forecaster: Forecaster
    series: Series
    stamp: tuple[Any, ...]
    groups: Groups | None = None
    made: dict[tuple[int, bool, str], Texts] = field(default_factory=dict)

    @property
    def ended(self) -> pd.Timestamp:
        """End of the history's last step, in UTC."""
        series = self.series
        end = series.zoned(series.times[-1:] + series.calendar.step)[0]
        return end.tz_localize("UTC") if end.tz is None else end.tz_convert("UTC")

    @property
    def levels(self) -> list[str]:
        """Levels that can be asked for."""
        return list(dict.fromkeys((CELL, *(self.groups.levels if self.groups else ()))))

    def texts(self, steps: int, bounds: bool, level: str) -> Texts:
        """Return a forecast, computed at its first use."""
        if (steps, bounds, level) not in self.made:
            self.made[steps, bounds, level] = self._texts(steps, bounds, level)
        return self.made[steps, bounds, level]

    def _texts(self, steps: int, bounds: bool, level: str) -> Texts:
        if level not in self.levels:
            raise choose("level", level, self.levels)
        groups, tested = (None, None) if level == CELL else (self.groups, self.forecaster.tested())
        found = make_outlook(self.forecaster, self.series, steps, tested=tested, groups=groups)
        if groups is not None:
            found = found.of_level(level)
        tables = {"forecast": found.forecast}
        if bounds and found.interval is not None:
            tables |= found.interval._asdict()
        times = [str(time) for time in found.forecast.index]
        coverage = found.interval and found.interval.lower.attrs["coverage"]
        about = {
            "service": found.forecast.attrs["service"],
            "units": found.forecast.attrs["units"],
            "coverage": coverage if bounds else None,
            "times": [time.replace(" ", "T") for time in times],
        }
        cells, rows = {}, {}
        for i, cell in enumerate(map(str, found.forecast.columns)):
            values = {
                n: [in_digits(v) if math.isfinite(v) else None for v in t.iloc[:, i]]
                for n, t in tables.items()
            }
            cells[cell] = json.dumps(values, separators=(",", ":"))
            name = inert(cell)
            name = f'"{name.replace(chr(34), chr(34) * 2)}"' if set(name) & set(',"\n\r') else name
            lines = zip(times, *values.values(), strict=True)
            rows[cell] = "".join(
                f"{at},{name},{','.join('' if v is None else str(v) for v in line)}\n"
                for at, *line in lines
            )
        names = [found.forecast.attrs["service"], *list(tables)[1:]]
        head = json.dumps(about, separators=(",", ":"))[:-1]
        return Texts(head, cells, rows, ",".join(["time", "cell", *names]) + "\n")


class ForecastService:
    """The newest model and history of a run.

    Args:
        run: folder of a run or of `Forecaster.save`.
        history: cube or table to forecast from; by default that of the run's last update, or else
            the run's own data.
        groups: sums to serve, too, see `read_groups`.

    Raises:
        InputError: if they cannot be read.
    """

    def __init__(self, run: Path, history: Path | None = None, groups: str | None = None) -> None:
        self.run, self.given, self.groups, self.problem = run, history, groups, ""
        self.requests: Counter[tuple[str, int]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.loads, self._lock = 0, threading.Lock()
        self._loaded = self._load(self._stamp())

    def current(self) -> Loaded:
        """Return the model in service, read anew if its files were replaced."""
        with self._lock:
            try:
                stamp = self._stamp()
                if stamp != self._loaded.stamp:
                    self._loaded = self._load(stamp)
                self.problem = ""
            except (InputError, OSError) as e:
                if str(e) != self.problem:
                    log.warning("%s: not read anew: %s", self.run, e)
                self.problem = str(e)
            return self._loaded

    def texts(self, steps: int | None, bounds: bool, cells: list[str], level: str = CELL) -> Texts:
        """Return a forecast that has some cells, or groups of a level.

        Raises:
            InputError: for an unknown cell or level, or a number of steps that is out of range.
        """
        loaded = self.current()
        steps = self._steps(loaded, steps)
        with self._lock:
            found = loaded.texts(steps, bounds, level)
        for cell in cells:
            if cell not in found.cells:
                few = len(found.cells) < 30
                raise UnknownCell(
                    choose("cell", cell, list(found.cells))
                    if few
                    else InputError(f"no cell {cell!r} among {some(found.cells)}; see /cells")
                )
        return found

    def answer(self, asked: ForecastRequest) -> ForecastAnswer:
        """Return the forecasts of a request of KServe's protocol.

        Raises:
            InputError: for another model, unknown cells, readings that do not continue the history,
                or a number of steps that is out of range.
        """
        if asked.model != self.name:
            raise UnknownCell(f"no model {asked.model!r}, only {self.name!r}")
        loaded = self.current()
        steps, forecaster = self._steps(loaded, asked.options.horizon), loaded.forecaster
        check_inputs(asked, loaded.series)
        history = with_readings(asked, loaded.series)
        with self._lock:
            series = loaded.series if history is None else forecaster.read(history)
            found = forecaster.outlook(series, steps, limits=ANY)
        return answer_request(asked, Tables(*found, forecaster.limits))

    @property
    def name(self) -> str:
        """Name of the model and of its folder."""
        return self.run.resolve().name

    @staticmethod
    def _steps(loaded: Loaded, steps: int | None) -> int:
        horizon = loaded.forecaster.config.window.horizon
        steps, most = horizon if steps is None else steps, MOST_HORIZONS * horizon
        if not 1 <= steps <= most:
            raise InputError(f"steps is {steps}; this service forecasts 1 to {most}")
        return steps

    def late(self) -> str:
        """Return how late the records of a run in service are; empty if they are not."""
        if not (self.run / FILE).exists():
            return ""
        most, ended = ServiceSettings.read(self.run).monitor.late_hours, self._loaded.ended
        hours = (pd.Timestamp.now("UTC") - ended) / pd.Timedelta(hours=1)
        if not most or hours <= most:
            return ""
        return f"the last records ended {hours:,.1f} hours ago; late_hours is {most:g}"

    def _history(self) -> Path:
        if self.given is not None:
            return self.given
        if (kept := self.run / IN_SERVICE.parent / "history.nc").exists():
            return kept.resolve()
        if is_model(self.run):
            raise InputError(f"{self.run}: a model without its data; ", Words("give {history}"))
        return data_of(read_about(self.run, "stforecast run"))

    def _stamp(self) -> tuple[Any, ...]:
        """Return what changes when the model or its history is replaced."""
        history = self._history()
        patterns = (f"{IN_SERVICE}/*", "model/*", "*.json")
        files = [history, *(f for p in patterns for f in sorted(self.run.glob(p)))]
        known = [(str(f.resolve()), f.stat()) for f in files if f.exists()]
        return str(history), *((name, of.st_mtime_ns, of.st_size) for name, of in known)

    def _load(self, stamp: tuple[Any, ...]) -> Loaded:
        forecaster = Forecaster.load(self.run)
        series = forecaster.read(stamp[0])
        forecaster.predict(series)
        self.loads += 1
        groups = None if self.groups is None else read_groups(self.groups, series)
        return Loaded(forecaster, series, stamp, groups)

    def metrics(self) -> str:
        """Return metrics in Prometheus's text format, with those of `stforecast monitor`."""
        requests = {f'{{path="{p}",status="{s}"}}': n for (p, s), n in self.requests.items()}
        seconds = {f'{{path="{p}"}}': round(n, 6) for p, n in self.seconds.items()}
        table: list[tuple[str, str, Any]] = [
            ("requests_total", "Requests by path and status.", requests),
            ("request_seconds_total", "Seconds of all requests of a path.", seconds),
            ("loads_total", "How often a model and its history were read.", self.loads),
            ("stale", "1 if a replaced model could not be read.", int(bool(self.problem))),
            ("records_end_timestamp_seconds", "End of the last records.",
             self._loaded.ended.timestamp()),
        ]  # fmt: skip
        own = "".join(family(f"stforecast_serve_{name}", text, of) for name, text, of in table)
        found = self.run / METRICS
        return own + (found.read_text() if found.exists() else "")


class UnknownCell(InputError):
    """A cell that the model does not forecast."""


def make_app(service: ForecastService, token: str = "") -> FastAPI:
    """Return the application.

    With a `token`, clients must send it as `Authorization: Bearer TOKEN`, except for `/health`.
    """
    app = Described(  # Its pages load scripts from a network that a server may not have.
        title="stforecast",
        description=f"Forecasts of {service.name}. Other methods get 405 and the header Allow.",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,  # Names of generated clients.
        responses={
            400: {"model": Refusal, "description": "Host, parameter or number out of range."},
            422: {"model": Refusal, "description": "A value of another type."},
            **({401: {"model": Refusal, "description": "No token, or another."}} if token else {}),
        },
    )
    app.add_middleware(HeadAsGet)

    @app.middleware("http")
    async def guard(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        begin, path = time.perf_counter(), request.scope["path"]
        kind, _, sent = request.headers.get("authorization", "").partition(" ")
        known = not token or (
            kind.lower() == "bearer" and hmac.compare_digest(sent.strip().encode(), token.encode())
        )
        request.state.known = known
        if known and (port := request.scope["state"].get("port")):
            port.known = True
        # A page elsewhere must not reach a server of the loopback by another name.
        if not token and not OWN_HOST.fullmatch(request.headers.get("host", "")):
            response: Response = _refused(
                request, 400, "unknown host; ask for 127.0.0.1, localhost or [::1], or give a token"
            )
        elif known or path == "/health":
            response = await call(request)
        else:
            wrong = "not this service's token; " if sent else ""
            response = _refused(
                request, 401, f"{wrong}send the token as: Authorization: Bearer TOKEN"
            )
            response.headers["www-authenticate"] = "Bearer"
        named = path if path in PATHS else "other"
        service.requests[named, response.status_code] += 1
        service.seconds[named] += time.perf_counter() - begin
        return response

    app.add_exception_handler(InputError, _bad_input)
    app.add_exception_handler(404, _no_path)
    app.add_exception_handler(405, _no_method)
    app.add_exception_handler(RequestValidationError, _bad_request)
    _add_forecasts(app, service)
    _add_descriptions(app, service)
    return app


class Described(FastAPI):
    """An application whose description has HEAD, too."""

    def openapi(self) -> dict[str, Any]:
        """Return the description."""
        found = super().openapi()
        for of in found["paths"].values():
            if (get := of.get("get")) is None:
                continue
            answers = {s: {"description": a["description"]} for s, a in get["responses"].items()}
            own = {"operationId": f"head_{get['operationId']}", "responses": answers}
            of["head"] = {**get, **own}
        return found


class HeadAsGet:
    """Answers HEAD as GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope.get("method") != "HEAD":
            return await self.app(scope, receive, send)

        async def without_body(message: Message) -> None:
            more = {"body": b""} if message["type"] == "http.response.body" else {}
            await send({**message, **more})

        await self.app({**scope, "method": "GET"}, receive, without_body)


class Refusal(BaseModel):
    """Answer to a bad request."""

    error: str


class CellValues(BaseModel):
    """Values of a cell or group at the times; null where unknown, bounds only where asked for."""

    forecast: list[float | None]
    lower: list[float | None] | None = None
    upper: list[float | None] | None = None


class Forecasts(BaseModel):
    """Forecasts with bounds of a coverage; null without bounds."""

    service: str
    units: str
    coverage: float | None
    times: list[str]
    cells: dict[str, CellValues]


class Place(BaseModel):
    """A cell, with longitude and latitude if known."""

    cell: str
    lon: float | None = None
    lat: float | None = None


class Health(BaseModel):
    """What is in service."""

    status: Literal["ok", "stale", "late"]
    problem: str
    method: str
    cells: int
    history_until: str
    horizon: int


PATHS = ("/forecast", "/cells", "/health", "/metrics", "/openapi.json", FORECAST, MODELS)
"""Paths that metrics name."""


def _refused(request: Request, status: int, message: str, **headers: str) -> JSONResponse:
    error: Any = message
    if _path(request) in (FORECAST, MODELS):
        error = Problem(code=str(status), message=message).model_dump()
    return JSONResponse({"error": error}, status, headers)


async def _bad_input(request: Request, e: Exception) -> JSONResponse:
    return _refused(request, 404 if isinstance(e, UnknownCell) else 400, str(e))


async def _no_path(request: Request, e: Exception) -> JSONResponse:
    text = f"nothing at {_path(request)}; /openapi.json lists what there is"
    return _refused(request, 404, text)


async def _no_method(request: Request, e: Exception) -> JSONResponse:
    allowed = "POST" if _path(request) == FORECAST else "GET, HEAD"
    text = f"{request.method} of {_path(request)}; this path only answers {allowed}"
    return _refused(request, 405, text, allow=allowed)


def _path(request: Request) -> str:
    # Not `request.url`, which a strange header Host breaks.
    return str(request.scope["path"])


async def _bad_request(request: Request, e: Exception) -> JSONResponse:
    first = e.errors()[0] if isinstance(e, RequestValidationError) else {}
    name, found = first.get("loc", ("",))[-1], first.get("input")
    return _refused(request, 422, f"{name} is {repr(found)[:100]}: {first.get('msg', e)}")


def _add_forecasts(app: FastAPI, service: ForecastService) -> None:
    """Add the paths of forecasts: our own, and the one of KServe's protocol."""
    most = MOST_HORIZONS * service.current().forecaster.config.window.horizon
    about_steps = f"Steps, from 1 to {most}; by default the horizon."

    @app.get(
        "/forecast",
        summary="Forecasts of cells, with bounds",
        response_class=Response,
        responses={
            # Generated clients read the first.
            200: {"model": Forecasts, "content": {
                "application/json": {}, "text/csv": {"schema": {"type": "string"}}}},
            404: {"model": Refusal, "description": "A cell that is not forecast."},
        },
    )  # fmt: skip
    def forecast(
        request: Request,
        cell: Annotated[list[str], Query(description="Cells; by default all.")] = [],  # noqa: B006
        steps: Annotated[
            int | None,
            Query(description=about_steps, json_schema_extra={"minimum": 1, "maximum": most}),
        ] = None,
        bounds: Annotated[bool, Query(description="Whether to add bounds.")] = True,
        format: Annotated[Literal["json", "csv"], Query(description="Format.")] = "json",
        level: Annotated[str, Query(description="Level of groups, such as site.")] = CELL,
    ) -> Response:
        for name in request.query_params:
            if name not in (known := ("cell", "steps", "bounds", "format", "level")):
                raise choose("parameter", name, known)
        texts = service.texts(steps, bounds, cell, level)
        body = getattr(texts, format)(dict.fromkeys(cell)) if cell else texts.whole[format]
        return Response(body, media_type=MEDIA[format])

    @app.post(
        FORECAST,
        summary="Forecasts of cells by KServe's protocol, after the readings that are sent",
        responses={status: {"model": ProblemAnswer} for status in (400, 404, 422)},
    )
    def timeseries(asked: ForecastRequest) -> ForecastAnswer:
        return service.answer(asked)


def _add_descriptions(app: FastAPI, service: ForecastService) -> None:
    """Add the paths that describe what is served: its name, cells, health and metrics."""

    @app.get(MODELS, summary="Names for KServe's protocol")
    def models() -> list[str]:
        return [service.name]

    @app.get(
        "/cells",
        summary="Cells that are forecast, with longitude and latitude if known",
        response_model_exclude_none=True,
    )
    def cells() -> list[Place]:
        series = service.current().series
        names, places = map(str, series.cells), series.locations
        if places is None:
            return [Place(cell=name) for name in names]
        return [Place(cell=n, lon=x, lat=y) for n, (x, y) in zip(names, places, strict=True)]

    @app.get(
        "/health",
        summary="What is in service",
        responses={503: {"description": "As 200, if the records are late."}},
    )
    def health(request: Request, response: Response) -> Health:
        loaded = service.current()
        late = service.late()
        response.status_code = 503 if late else 200
        forecaster, series = loaded.forecaster, loaded.series
        last = pd.DatetimeIndex(series.calendar.local_times(np.array([len(series.values) - 1])))
        return Health(
            status="late" if late else "stale" if service.problem else "ok",
            problem=late
            or (service.problem if request.state.known else service.problem and IN_LOG),
            method=forecaster.config.method,
            cells=len(series.cells),
            history_until=last[0].isoformat(),
            horizon=forecaster.config.window.horizon,
        )

    @app.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
    def metrics() -> Response:
        return Response(service.metrics(), media_type="text/plain; version=0.0.4")


def check_address(host: str, token: str) -> None:
    """Refuse a host that others reach without a token, and a token that can be guessed."""
    if token and len(token) < SHORTEST:
        raise InputError(
            f"the token has {len(token)} characters, expected at least {SHORTEST}; make one: "
            "openssl rand -hex 16"
        )
    if host not in LOOPBACK and not token:
        raise InputError(
            f"host is {host!r}, which others can reach; ",
            Words("give {token_file}, or leave out {host} for {}", LOOPBACK[0]),
        )


def check_port(host: str, port: int) -> None:
    """Refuse a port that is none, or at which this program cannot listen."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except (OSError, OverflowError) as e:
        known = str(getattr(e, "strerror", None) or "expected 1 to 65535")
        reason = known.partition(" (while")[0]
        raise InputError(f"{host}:{port}: {reason}; ", Words("choose another {port}")) from e


def serve(
    run: Path, history: Path | None, host: str, port: int, token: str, groups: str | None = None
) -> None:
    """Serve a run until Ctrl-C or SIGTERM."""
    from stforecast.service.port import make_server

    check_address(host, token)
    check_port(host, port)
    app = make_app(ForecastService(run, history, groups), token)
    where = f"[{host}]" if ":" in host else host
    log.info("http://%s:%d/openapi.json describes what is served; Ctrl-C ends it", where, port)
    with contextlib.suppress(KeyboardInterrupt):
        make_server(app, LARGEST, host=host, port=port).run()
