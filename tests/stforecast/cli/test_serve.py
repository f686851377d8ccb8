"""Forecasts over HTTP, and models as files for other programs."""

import io
import json
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import psutil
import pytest
from attackers import Attacker, besiege
from mentions import mentions
from waiting import started, wait_for

from data_prep.base.errors import InputError
from stforecast.cli.main import main
from stforecast.data.cubes import open_cube
from stforecast.flower.supernode import free_port
from stforecast.forecasting import runs
from stforecast.forecasting.forecaster import Forecaster

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx2", reason="starlette's test client needs it")

from fastapi.testclient import TestClient  # noqa: E402

from stforecast.service import port as ports  # noqa: E402
from stforecast.service.serve import (  # noqa: E402
    ForecastService,
    check_address,
    check_port,
    make_app,
    serve,
)

SETTINGS = {"service": "internet", "split": "days:6,2,2", "horizon": 3, "intervals": "normalised"}
TOKEN = "0123456789abcdef"
KSERVE = "/v1/timeseries/forecast"


@pytest.fixture(scope="module")
def trained(town, tmp_path_factory):
    return runs.run("ridge", town, tmp_path_factory.mktemp("trained") / "run", SETTINGS).folder


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def client(run):
    return TestClient(make_app(ForecastService(run)), base_url="http://localhost")


def test_json_and_csv_are_what_predict_gives(client, run, town):
    forecaster = Forecaster.load(run)
    expected, bounds = forecaster.predict(town), forecaster.predict_interval(town)
    found = client.get("/forecast").json()
    cell = str(expected.columns[1])
    assert list(found["cells"]) == [str(c) for c in expected.columns]
    assert (pd.DatetimeIndex(found["times"]) == expected.index).all()
    np.testing.assert_allclose(found["cells"][cell]["forecast"], expected.iloc[:, 1], rtol=1e-6)
    np.testing.assert_allclose(found["cells"][cell]["upper"], bounds.upper.iloc[:, 1], rtol=1e-6)
    assert found["coverage"] == 0.9
    main_out = run.parent / "f.csv"
    with pytest.raises(SystemExit):
        main(["predict", str(run), "--history", str(town), "--out", str(main_out)])
    table = client.get("/forecast?format=csv").text
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(table)), pd.read_csv(main_out))


def test_some_cells_steps_and_no_bounds(client):
    cell = client.get("/cells").json()[0]["cell"]
    found = client.get(f"/forecast?cell={cell}&steps=5&bounds=false").json()
    assert list(found["cells"]) == [cell]
    assert list(found["cells"][cell]) == ["forecast"]
    assert len(found["cells"][cell]["forecast"]) == len(found["times"]) == 5


def test_groups_are_asked_for_by_level_and_are_sums(run, tmp_path):
    own = pd.Series(Forecaster.load(run).cells, name="cell").to_frame()
    own.assign(site=["y"] + ["x"] * (len(own) - 1)).to_csv(tmp_path / "m.csv", index=False)
    service = ForecastService(run, groups=str(tmp_path / "m.csv"))
    client = TestClient(make_app(service), base_url="http://localhost")
    cells = client.get("/forecast").json()["cells"]
    sites = client.get("/forecast?level=site").json()["cells"]
    assert list(sites) == ["x", "y"]
    total = sum(np.array(of["forecast"]) for of in cells.values())
    np.testing.assert_allclose(sum(np.array(of["forecast"]) for of in sites.values()), total, 1e-6)
    assert (np.array(sites["x"]["lower"]) < sites["x"]["upper"]).all()
    assert client.get("/forecast?level=site&cell=y").json()["cells"] == {"y": sites["y"]}
    refused = client.get("/forecast?level=town")
    assert refused.status_code == 400
    assert "all, cell, site" in refused.text


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("level=site", 400, "unknown level 'site'"),
        ("cell=nowhere", 404, "unknown cell 'nowhere'"),
        ("steps=0", 400, "steps is 0; this service forecasts 1 to 30"),
        ("steps=x", 422, "steps is 'x'"),
        ("cells=a", 400, "unknown parameter 'cells'"),
        ("format=xml", 422, "format is 'xml'"),
    ],
)
def test_bad_input_gets_one_line(client, query, status, message):
    answer = client.get(f"/forecast?{query}")
    assert answer.status_code == status
    assert answer.json()["error"].startswith(message)
    assert "\n" not in answer.json()["error"]


def test_health_metrics_and_the_description(client):
    assert client.get("/health").json()["status"] == "ok"
    client.get("/forecast?steps=0")
    text = client.get("/metrics").text
    assert 'stforecast_serve_requests_total{path="/forecast",status="400"} 1' in text
    assert "/forecast" in client.get("/openapi.json").json()["paths"]
    for path in ("/docs", "/redoc"):  # They would load scripts from a network.
        answer = client.get(path)
        assert answer.status_code == 404
        assert answer.json() == {"error": f"nothing at {path}; /openapi.json lists what there is"}
    answer = client.post("/forecast")
    assert answer.status_code == 405
    assert answer.json() == {"error": "POST of /forecast; this path only answers GET, HEAD"}
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_is_answered_as_get_without_the_body(client):
    for path in ("/forecast", "/forecast?format=csv", "/health", "/metrics", "/cells?x=1"):
        got, head = client.get(path), client.head(path)
        assert head.status_code == got.status_code
        assert head.headers["content-type"] == got.headers["content-type"]
        assert head.content == b""
    assert client.head("/nothing").status_code == 404


def test_health_fails_where_a_run_in_service_is_late(client, run):
    assert client.get("/health").status_code == 200  # A run that never was in service.
    (run / "service.toml").write_text("[monitor]\nlate_hours = 36\n")
    answer = client.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (503, "late")
    assert "late_hours is 36" in answer.json()["problem"]
    (run / "service.toml").write_text("[monitor]\nlate_hours = 0\n")
    assert client.get("/health").status_code == 200


def test_the_description_has_limits_media_and_refusals_as_they_are(client):
    found = client.get("/openapi.json").json()
    forecast = found["paths"]["/forecast"]["get"]
    (steps,) = [p["schema"] for p in forecast["parameters"] if p["name"] == "steps"]
    assert (steps["minimum"], steps["maximum"]) == (1, 30)
    assert set(forecast["responses"]["200"]["content"]) == {"application/json", "text/csv"}
    for status in ("400", "404", "422"):
        schema = forecast["responses"][status]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/Refusal"}
    assert list(found["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]


def test_clients_generated_from_the_description_have_names_and_types(client, described):
    operations = [of for path in described["paths"].values() for of in path.values()]
    names = [of["operationId"] for of in operations]
    assert {"forecast", "head_forecast", "timeseries", "cells"} <= set(names)
    assert len(set(names)) == len(names)
    parts = described["components"]["schemas"]
    for path in ("/forecast", "/forecast?bounds=false", "/health", "/cells"):
        answers = described["paths"][path.partition("?")[0]]["get"]["responses"]
        kind, media = next(iter(answers["200"]["content"].items()))
        assert kind == "application/json", "a client reads the first"
        schema = media["schema"]
        assert fits(client.get(path).json(), schema, parts)
        assert "$ref" in schema.get("items", schema), "answers are of a class of the client"


@pytest.fixture
def described(client):
    return client.get("/openapi.json").json()


def test_the_description_has_head_with_the_answers_of_get(described):
    assert set(described["paths"].pop(KSERVE)) == {"post"}
    for of in described["paths"].values():
        assert set(of) == {"get", "head"}
        assert set(of["head"]["responses"]) == set(of["get"]["responses"])
        assert not any("content" in answer for answer in of["head"]["responses"].values())
    assert "405 and the header Allow" in described["info"]["description"]


def test_metrics_are_what_prometheus_takes(client):
    if not (promtool := shutil.which("promtool")):
        pytest.skip("no promtool here; on Debian: apt-get install prometheus")
    for path in ("/forecast", "/forecast?steps=0", "/nothing"):
        client.get(path)
    text = client.get("/metrics").text
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, text=True, stderr=subprocess.PIPE
    )
    assert (done.returncode, done.stderr) == (0, "")


KINDS = {
    "object": dict, "array": list, "string": str, "integer": int, "boolean": bool,
    "number": (int, float), "null": type(None),
}  # fmt: skip


def fits(value, schema, parts):
    """Whether a value is one of a JSON schema, of the keywords that the description has."""
    if "$ref" in schema:
        return fits(value, parts[schema["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in schema:
        return any(fits(value, one, parts) for one in schema["anyOf"])
    if not isinstance(value, KINDS[schema["type"]]) or value not in schema.get("enum", [value]):
        return False
    if schema["type"] == "array":
        return all(fits(one, schema.get("items", {"type": "object"}), parts) for one in value)
    own, needed = schema.get("properties", {}), set(schema.get("required", ()))
    if isinstance(further := schema.get("additionalProperties"), dict):
        return all(fits(one, further, parts) for one in value.values())
    return schema["type"] != "object" or (
        needed <= set(value) and all(fits(value[n], s, parts) for n, s in own.items() if n in value)
    )


TEXT, SERIES = {"type": "string"}, {"type": "array", "items": {"type": "number"}}
FREQUENCY = {"type": "string", "enum": [
    "second", "S", "minute", "T", "hour", "H", "day", "D", "week", "W", "month", "M", "quarter",
    "Q", "year", "Y",
]}  # fmt: skip
STATUS = {"type": "string", "enum": ["completed", "error", "pending", "partial"]}
KIND = {"type": "string", "enum": ["univariate_time_series", "multivariate_time_series"]}
OF_KSERVE = {
    "ForecastResponse": {
        "type": "object", "required": ["id", "created_at", "status", "model", "outputs"],
        "properties": {
            "id": TEXT, "created_at": {"type": "integer"}, "status": STATUS, "model": TEXT,
            "outputs": {"type": "array", "items": {"$ref": "ForecastOutput"}},
            "error": {"type": "null"},
        },
    },
    "ForecastOutput": {
        "type": "object", "required": ["type", "id", "status", "content"],
        "properties": {
            "type": TEXT, "id": TEXT, "status": STATUS, "error": {"type": "null"},
            "content": {"type": "array", "items": {"$ref": "TimeSeriesForecast"}},
        },
    },
    "TimeSeriesForecast": {
        "type": "object",
        "required": ["type", "name", "mean_forecast", "frequency", "start_timestamp"],
        "properties": {
            "type": KIND, "name": TEXT, "mean_forecast": SERIES, "frequency": FREQUENCY,
            "start_timestamp": TEXT,
            "quantiles": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        },
    },
    "ErrorResponse": {
        "type": "object", "required": ["error"], "properties": {"error": {"$ref": "Error"}},
    },
    "Error": {
        "type": "object", "required": ["message", "type"],
        "properties": {"message": TEXT, "type": TEXT, "code": TEXT,
                       "param": {"anyOf": [TEXT, {"type": "null"}]}},
    },
}  # fmt: skip
"""Required and optional parts of answers of KServe 0.21's protocol."""


def asked(cells, **options):
    """A request for forecasts after the history."""
    inputs = [
        {"type": "univariate_time_series", "name": cell, "series": [], "frequency": "hour"}
        for cell in cells
    ]
    return {"model": "run", "inputs": inputs, "options": {"horizon": 3, **options}}


def test_kserves_protocol_gives_the_same_forecasts_and_quantiles(client, run, town):
    expected, bounds = Forecaster.load(run).outlook(town, limits=(-np.inf, np.inf))
    cells = [str(cell) for cell in expected.columns][:2]
    assert client.get("/v1/timeseries/models").json() == ["run"]
    answer = client.post(KSERVE, json=asked(cells, quantiles=[0.05, 0.5, 0.8, 0.95]))
    assert answer.status_code == 200
    assert fits(answer.json(), {"$ref": "ForecastResponse"}, OF_KSERVE)
    for i, output in enumerate(answer.json()["outputs"]):
        (found,) = output["content"]
        assert found["name"] == cells[i]
        assert pd.Timestamp(found["start_timestamp"]) == expected.index[0]
        low, middle, more, high = (found["quantiles"][q] for q in ("0.05", "0.5", "0.8", "0.95"))
        for own, of in ((low, bounds.lower), (middle, expected), (high, bounds.upper)):
            np.testing.assert_allclose(own, of.iloc[:, i].clip(lower=0), rtol=1e-6)
        np.testing.assert_allclose(found["mean_forecast"], middle)
        assert all(a < b < c for a, b, c in zip(middle, more, high, strict=True))


def test_kserves_readings_continue_or_replace_the_history(client, run, town):
    forecaster = Forecaster.load(run)
    series = forecaster.read(town)
    table = pd.DataFrame(series.values, series.zoned(series.times), series.cells)
    cell = str(table.columns[0])
    question = asked([cell])
    (sent,) = question["inputs"]
    before = client.post(KSERVE, json=question).json()["outputs"][0]["content"][0]
    # The last two readings again, and one that is new.
    sent["series"] = [*table.iloc[-2:, 0], 3 * table.iloc[-1, 0]]
    sent["start_timestamp"] = table.index[-2].isoformat()
    found = client.post(KSERVE, json=question).json()["outputs"][0]["content"][0]
    step = table.index[-1] - table.index[-2]
    assert pd.Timestamp(found["start_timestamp"]) == pd.Timestamp(before["start_timestamp"]) + step
    longer = table.reindex(table.index.union([table.index[-1] + step]))
    longer.iloc[-1, 0] = sent["series"][-1]
    longer.attrs["units"] = series.units
    np.testing.assert_allclose(
        found["mean_forecast"], forecaster.predict(longer).iloc[:, 0], rtol=1e-5
    )
    after = client.post(KSERVE, json=asked([cell])).json()["outputs"][0]["content"][0]
    assert after["mean_forecast"] == before["mean_forecast"], "the history stays as it was"


def test_the_request_of_the_page_is_one_of_the_protocol(client, run):
    page = (Path(__file__).resolve().parents[3] / "docs" / "serve.md").read_text()
    question = json.loads(page.partition("```text\n")[2].partition("```")[0])
    (sent,) = question["inputs"]
    series = ForecastService(run).current().series
    end = series.zoned(series.times[-1:] + series.calendar.step)[0]
    sent |= {"name": str(series.cells[0]), "start_timestamp": end.isoformat()}
    answer = client.post(KSERVE, json=question)
    assert answer.status_code == 200
    (found,) = answer.json()["outputs"][0]["content"]
    assert {name: len(of) for name, of in found["quantiles"].items()} == {"0.1": 3, "0.9": 3}


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "other"}, 404, "no model 'other', only 'run'"),
        ({"options": {"horizon": 31}}, 400, "steps is 31; this service forecasts 1 to 30"),
        ({"options": {}}, 422, "horizon is"),
        ({"options": {"horizon": 1, "quantiles": [1.0]}}, 422, "0 is 1.0"),
        ({"name": "nowhere"}, 400, "unknown input 'nowhere'"),
        ({"type": "multivariate_time_series"}, 422, "type is 'multivariate_time_series'"),
        ({"frequency": "day"}, 400, "is 'day', this model has steps of 60 minutes"),
        ({"series": [1.0]}, 400, "is missing; give the time of its first reading"),
        ({"series": [1.0], "start_timestamp": "soon"}, 400, "is 'soon'"),
        ({"series": [1.0], "start_timestamp": "2031-01-01"}, 400, "where the history ends"),
    ],
)
def test_kserves_errors_have_its_form(client, change, status, message):
    question = asked([client.get("/cells").json()[0]["cell"]])
    for name, value in change.items():
        (question if name in question else question["inputs"][0])[name] = value
    answer = client.post(KSERVE, json=question)
    assert answer.status_code == status
    assert fits(answer.json(), {"$ref": "ErrorResponse"}, OF_KSERVE)
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == str(status)


def valid(schema, cells):
    """Texts that a parameter's schema allows."""
    if "anyOf" in schema:
        (inner,) = [s for s in schema["anyOf"] if s["type"] != "null"]
        return valid({**inner, **{n: schema[n] for n in schema if n != "anyOf"}}, cells)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema["type"] == "array":
        return st.lists(st.one_of(st.sampled_from(cells), st.text(max_size=9)), max_size=3)
    if schema["type"] == "boolean":
        return st.sampled_from(["true", "false"])
    if schema["type"] == "string":  # Further levels need groups.
        return st.just(schema["default"])
    return st.integers(schema["minimum"], schema["maximum"]).map(str)


@pytest.mark.slow
def test_every_request_is_answered_as_the_description_says(client, described):
    cells = [one["cell"] for one in client.get("/cells").json()]
    parts, names = described["components"]["schemas"], [*described["paths"], "/nothing"]
    odd = st.one_of(st.text(max_size=20), st.integers().map(str), st.sampled_from(["nan", "1e9"]))

    @hypothesis.settings(max_examples=400, deadline=None, derandomize=True, database=None)
    @hypothesis.given(st.data())
    def ask(data):
        path = data.draw(st.sampled_from(names))
        method = data.draw(st.sampled_from(["get", "get", "get", "head", "post", "delete"]))
        operation = described["paths"].get(path, {}).get(method, {})
        right, query = "requestBody" not in operation, {}
        for one in operation.get("parameters", ()):
            if data.draw(st.booleans()):
                usual = data.draw(st.booleans())
                right &= usual
                query[one["name"]] = data.draw(valid(one["schema"], cells) if usual else odd)
        if data.draw(st.integers(0, 9)) == 0:
            right, query["other"] = False, data.draw(odd)
        answer = client.request(method, path, params=query)
        if path == "/nothing" or not operation:
            assert answer.status_code == (404 if path == "/nothing" else 405)
            allowed = "POST" if path == KSERVE else "GET, HEAD"
            assert answer.status_code == 404 or answer.headers["allow"] == allowed
            kind = parts["ProblemAnswer" if path.startswith("/v1") else "Refusal"]
            assert method == "head" or fits(answer.json(), kind, parts)
            return
        told = operation["responses"][str(answer.status_code)]
        assert answer.status_code in (200, 404) or not right, "what is allowed is answered"
        if method == "head":
            assert answer.content == b""
            return
        content = told["content"]
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in content
        if kind == "application/json":
            assert fits(answer.json(), content[kind]["schema"], parts)

    ask()


def test_a_token_is_asked_for_except_by_health(run):
    client = TestClient(make_app(ForecastService(run), TOKEN))
    assert client.get("/forecast").status_code == 401
    assert client.get("/openapi.json").status_code == 401
    assert client.get("/health").status_code == 200
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/cells", headers=right).status_code == 200
    assert client.get("/cells", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200
    wrong = {"Authorization": f"Bearer {TOKEN}x"}
    answer = client.get("/cells", headers=wrong)
    assert answer.status_code == 401
    assert answer.json()["error"].startswith("not this service's token; send the token as")


def test_other_hosts_need_a_token_and_other_names_of_the_loopback_are_refused(client):
    check_address("127.0.0.1", "")
    check_address("0.0.0.0", TOKEN)
    with pytest.raises(InputError, match=r"others .*token_file"):
        check_address("0.0.0.0", "")
    with pytest.raises(InputError, match=r"3 characters, .*16"):
        check_address("127.0.0.1", "abc")
    for host in ("elsewhere.example", "testserver", "localhost.example", "::1", "127.0.0.1:x"):
        assert client.get("/health", headers={"Host": host}).status_code == 400
    for host in ("LOCALHOST:80", "127.0.0.1:8000", "[::1]", "[::1]:8000"):
        assert client.get("/health", headers={"Host": host}).status_code == 200


def test_a_replaced_run_is_read_anew_and_a_damaged_one_leaves_the_old(client, run, town, tmp_path):
    before = client.get("/forecast").json()
    shutil.rmtree(run)
    runs.run("seasonal_day", town, run, SETTINGS)
    after = client.get("/forecast").json()
    assert client.get("/health").json()["method"] == "seasonal_day"
    assert after["cells"] != before["cells"]
    (run / "model" / "state.safetensors").write_bytes(b"damaged")
    assert client.get("/forecast").json() == after
    assert client.get("/health").json()["status"] == "stale"
    assert "stforecast_serve_stale 1" in client.get("/metrics").text


def test_health_shows_paths_only_to_those_with_the_token(run):
    client = TestClient(make_app(ForecastService(run), TOKEN))
    (run / "model" / "state.safetensors").write_bytes(b"damaged")
    found = client.get("/health").json()
    assert found["status"] == "stale"
    assert "log says why" in found["problem"]
    assert str(run) not in str(found)
    known = client.get("/health", headers={"Authorization": f"Bearer {TOKEN}"}).json()
    assert str(run) in known["problem"]


def test_the_history_of_the_last_update_comes_first(run, town):
    state = run / "service" / "current"
    state.mkdir(parents=True)
    with open_cube(town) as ds:
        ds.isel(time=slice(None, -5)).to_netcdf(state / "history.nc", engine="h5netcdf")
    service = ForecastService(run)
    assert len(service.current().series.values) == 235


@pytest.fixture
def failing(capsys):
    """Runs a command that fails; gives its error output."""

    def call(*words):
        with pytest.raises(SystemExit) as exit_:
            main([str(w) for w in words])
        assert exit_.value.code == 2
        return capsys.readouterr().err

    return call


def test_mistakes_of_the_commands_are_named(failing, run, tmp_path):
    assert "others can reach" in failing("serve", run, "--host", "0.0.0.0")
    assert "no run here" in failing("serve", tmp_path / "nowhere")
    assert "no token here" in failing("serve", run, "--token-file", tmp_path / "t")
    assert "ridge is no network" in failing("export", run, "--onnx", tmp_path / "m.onnx")
    assert "expected .onnx" in failing("export", run, "--onnx", tmp_path / "m.h5")
    assert "give --onnx" in failing("export", run)


def test_the_command_writes_a_graph(town, tmp_path, capsys):
    pytest.importorskip("onnx")
    settings = {**SETTINGS, "rounds": 1, "model": "linear"}
    folder = runs.run("fedavg", town, tmp_path / "run", settings).folder
    with pytest.raises(SystemExit) as exit_:
        main(["export", str(folder), "--onnx", str(tmp_path / "m.onnx")])
    assert not exit_.value.code
    assert mentions(capsys.readouterr().out, "history (72 × 3)", "clock (75)")


def test_a_port_that_is_taken_or_none_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"{port}: Address .*another"):
            check_port("127.0.0.1", port)
    with pytest.raises(InputError, match=r"99999: .*1 to 65535; "):
        check_port("127.0.0.1", 99999)


def test_the_loopback_of_ipv6_answers(run, monkeypatch):
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as free:
            port = free.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6")
    servers, make_server = [], ports.make_server

    def remembered(*args, **settings):
        servers.append(make_server(*args, **settings))
        return servers[0]

    monkeypatch.setattr(ports, "make_server", remembered)
    thread = threading.Thread(target=serve, args=(run, None, "::1", port, ""))
    thread.start()
    try:
        wait_for(lambda: servers and servers[0].started)
        url = f"http://[::1]:{port}/health"
        assert httpx.get(url).json()["status"] == "ok"
        assert httpx.get(url, headers={"Host": "[::2]"}).status_code == 400
    finally:
        for server in servers:
            server.should_exit = True
        thread.join()


@pytest.mark.slow
@pytest.mark.attack("strangers at the port")
def test_requests_that_cost_much_stop_nobody_else(run, tmp_path):
    port, log = free_port(), tmp_path / "log"
    with (
        log.open("w") as file,
        started("-m", "stforecast", "serve", run, "--port", port, stderr=file) as server,
    ):
        wait_for(lambda: "/openapi.json describes" in log.read_text(), 60)
        wait_for(lambda: psutil.Process(server.pid).net_connections(), 60)
        waited, grown, cpu = besiege(Attacker(port), server.pid, b"/health")
    assert waited < 10, "an answer comes at once, on any processor"
    assert cpu < 20
    assert grown < 50
    refusals = [line for line in log.read_text().splitlines() if "refused a request" in line]
    assert 2 <= len(refusals) <= 5
    assert "Traceback" not in log.read_text()
