"""Nodes with a cube each, without Flower: errors and models are those of one process."""

import dataclasses
import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from mentions import mentions
from node_link import NodeLink

from data_prep.base.errors import InputError
from data_prep.cube import write_cube
from stforecast.cli.info import describe
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import Finished, Message
from stforecast.federated.nodes.run_settings import check_owners
from stforecast.federated.runs.checkpoint import newest_sound
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower.node import FlowerNode, NodePlace
from stforecast.flower.server_app import mean_test_errors, prepare_continuation, serve
from stforecast.flower.settings import RunSettings, parse_owner, read_run, write_app
from stforecast.forecasting.config import resolve
from stforecast.forecasting.forecaster import Forecaster
from stforecast.methods import METHODS

TOKEN = "0123456789abcdef"
RUN = f"run-{TOKEN}"

SHARES = {"a": (0, 1), "b": (1, 3)}


TREES = {
    "model": "mlp", "period": 24, "extra_lags": "", "profile": "none", "depth": 2, "rounds": 6,
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("method", "secure"),
    [
        *((name, None) for name in ("fuels", "perfedavg")),
        *(pytest.param(n, None, marks=pytest.mark.slow) for n in ("fedavg", "fedrep", "fedtrees")),
        ("fedavg", SecureSums()),
        ("fedtrees", SecureSums()),
    ],
)
def test_errors_and_rounds_are_those_of_one_process(method, secure, federation, cube, tmp_path):
    run, link, forecaster = federation(
        method, secure=secure, **(TREES if method == "fedtrees" else {})
    )
    about = serve(link, run)
    forecaster.fit(cube)
    table = forecaster.evaluate()
    wanted = table[table["selection"].isin(["last", "best"]) & (table["client"] != "all")]
    found = pd.concat(
        [pd.read_csv(tmp_path / f"{name}.federation" / RUN / "metrics.csv") for name in SHARES]
    )
    found = found[found["client"] != "all"]
    keys = ["client", "horizon", "split", "selection", "metric"]
    both = [
        t.astype({"client": str, "horizon": str}).set_index(keys)["value"].sort_index()
        for t in (wanted, found)
    ]
    assert both[0].index.equals(both[1].index)
    np.testing.assert_allclose(both[0], both[1], rtol=1e-3)
    pooled = table.query(
        "client == 'all' and horizon == 'all' and split == 'test' and selection == 'best'"
    ).set_index("metric")["value"]
    assert about["test"]["mse"] == pytest.approx(pooled["mse"], rel=1e-4)
    assert about["test"]["mae"] == pytest.approx(pooled["mae"], rel=1e-4)
    others = ["seconds", "bytes_up", "bytes_down"] if secure else ["seconds"]
    rounds = pd.read_csv(tmp_path / "server" / "rounds.csv").drop(columns=others)
    expected = forecaster.rounds_.drop(columns=others)
    sends_means = METHODS[method].sends.sums != "none"
    if not secure and sends_means:  # Two nodes send two means, not the uploads of three clients.
        expected["bytes_up"] *= 2 / 3
    pd.testing.assert_frame_equal(rounds, expected, rtol=1e-4, check_dtype=False)
    left = describe(tmp_path / "a.federation" / RUN)
    assert (left.kind, left.about["service"]) == ("a federation's run on a node", "internet")
    assert left.next_command.startswith("stforecast federate check ")
    assert "round 2: 3 of 3" in (tmp_path / "server" / "server.log").read_text()


WHOLE = [
    pytest.param("fedavg", {"model": "linear"}, marks=pytest.mark.slow),
    ("fedavg", {"model": "stid", "calendar": "day"}),
    pytest.param(
        "fedproto", {"model": "stid", "calendar": "day", "dropout": 0.0}, marks=pytest.mark.slow
    ),
    pytest.param(
        "fedrep", {"model": "graph_wavenet", "blocks": 1, "channels": 4, "dropout": 0.0},
        marks=pytest.mark.slow,
    ),
    ("fuels", {"model": "mlp"}),
    pytest.param("fedda", {"model": "linear", "warmup_epochs": 2}, marks=pytest.mark.slow),
    pytest.param("fedtrees", TREES, marks=pytest.mark.slow),
    ("fedlean", {"model": "mlp", "extra_lags": "2-6", "calendar": "day"}),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("method", "settings"), WHOLE)
def test_a_node_can_be_one_client_with_all_its_cells(method, settings, federation, cube, tmp_path):
    run, link, _ = federation(method, firsts=(0, 1), n_clients=2, clients="all", **settings)
    about = serve(link, run)
    owned = cube.assign_coords(operator=("cell", ["a", "b", "b"]))
    shared = {**run.config.flat(), **settings, "clients": "operator"}
    forecaster = Forecaster.recorded(shared).fit(owned)
    folder = tmp_path / "b.federation" / RUN
    keys = ["client", "horizon", "split", "selection", "metric"]
    wanted, found = (
        t.astype({"client": str, "horizon": str}).set_index(keys)["value"]
        for t in (forecaster.evaluate(), pd.read_csv(folder / "metrics.csv"))
    )
    own = [i for i in found.index if i[0] in ("22", "33") and i[3] in ("last", "best")]
    assert own
    np.testing.assert_allclose(wanted[own], found[own], rtol=1e-3)
    assert set(pd.read_csv(folder / "clients.csv")["client"]) == {"all"}
    pooled = forecaster.evaluate().query(
        "client == 'all' and horizon == 'all' and split == 'test' and selection == 'best'"
    )
    expected = pooled.set_index("metric")["value"]["mse"]
    assert about["test"]["mse"] == pytest.approx(expected, rel=1e-3)
    rounds = pd.read_csv(tmp_path / "server" / "rounds.csv").drop(columns="seconds")
    expected = forecaster.rounds_.drop(columns="seconds")
    pd.testing.assert_frame_equal(rounds, expected, rtol=1e-3, check_dtype=False)


@pytest.mark.parametrize("clients", ["kmeans:2", "grid:2x2", "owners.csv"])
def test_clients_that_need_other_nodes_cells_are_refused(clients, federation):
    run, _, _ = federation("fedavg", clients=clients)
    with pytest.raises(InputError, match=f"clients is '{clients}'"):
        RunSettings.from_run_config(run.as_run_config())


OF_METHOD = {
    "fedtrees": TREES,
    "fedlean": {"extra_lags": "2-6", "calendar": "day", "refit": "never"},
    "protoridge": {"extra_lags": "2-6", "calendar": "day", "refit": "never"},
    "fedpm": {"closeness": 24, "epochs": 1, "model": "patch_transformer"},
    "fedda": {"warmup_epochs": 2},
    "fedda_clusters": {"warmup_epochs": 2},
}
"""Settings of methods that the common ones do not suit."""

RUNNABLE = [n for n, kind in METHODS.items() if not kind.pooled and "rounds" not in kind.unread]


@pytest.mark.quick(2)
@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((name, OF_METHOD.get(name, {})) for name in RUNNABLE),
        ("fedavg", {"target": "change"}),
        ("fedrep", {"target": "day"}),
        ("fedlean", {"clients": "all", "extra_lags": "2-6", "calendar": "day"}),
    ],
)
def test_each_node_keeps_a_forecaster_that_needs_no_server(
    method, settings, federation, cube, tmp_path
):
    """Its forecasts are those of one process, also once it was trained further without a server."""
    whole = settings.get("clients") == "all"
    firsts = {"firsts": (0, 1), "n_clients": 2} if whole else {}
    run, link, _ = federation(method, **firsts, **settings)
    assert serve(link, run)["nodes"] == 2
    shared = {**run.config.flat(), "clients": "operator" if whole else "cell"}
    forecaster = Forecaster.recorded(shared)
    owned = cube.assign_coords(operator=("cell", ["a", "b", "b"]))
    expected = forecaster.fit(owned).predict(owned, steps=3)
    for name, (first, end) in SHARES.items():
        folder, data = tmp_path / f"{name}.federation" / RUN, tmp_path / f"{name}.nc"
        own = Forecaster.load(folder)
        assert own.config.method == method
        found = own.predict(data, steps=3)
        if method != "protoridge":  # Each node draws its own groups.
            pd.testing.assert_frame_equal(found, expected.iloc[:, first:end], rtol=1e-4, atol=1e-4)
        again = own.learn_all(data)
        assert again.predict(data, steps=3).notna().all(axis=None)
        saved = Forecaster.load(again.save(tmp_path / f"{name}-again"))
        pd.testing.assert_frame_equal(saved.predict(data, 3), again.predict(data, 3))


def in_one_process(run, cube):
    """The same run in one process."""
    return Forecaster.recorded({**run.config.flat(), "clients": "cell"}).fit(cube)


@pytest.mark.quick(2)
@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedlean", {**OF_METHOD["fedlean"], "intervals": "conformal", "refit": "final"}),
        *(
            (name, {**OF_METHOD.get(name, {}), "refit": "final"})
            for name in RUNNABLE
            if name != "protoridge"
        ),
        ("fedavg", {"refit": "once", "select": "last"}),
        ("fedrep", {"refit": "final", "split": "days:7,0,3"}),
    ],
)
def test_refits_are_those_of_one_process(method, settings, federation, cube, tmp_path):
    """Errors, forecasts and bounds; with moments or the best round, sums first or not."""
    run, link, _ = federation(method, refit_rounds=2, **settings)
    about = serve(link, run)
    forecaster = in_one_process(run, cube)
    pooled = forecaster.evaluate().query("client == 'all' and horizon == 'all' and split == 'test'")
    wanted = pooled[pooled["selection"] == run.config.run.select].set_index("metric")["value"]
    assert about["test"]["mse"] == pytest.approx(wanted["mse"], rel=1e-4)
    refits = pd.read_csv(tmp_path / "server" / "refits.csv").groupby("refit", sort=False)
    assert refits["round"].count().tolist() == forecaster.refits_["rounds"].tolist()
    expected, bounds = forecaster.predict(cube, 3), forecaster.predict_interval(cube, 3)
    for name, (first, end) in SHARES.items():
        own = Forecaster.load(tmp_path / f"{name}.federation" / RUN)
        data = tmp_path / f"{name}.nc"
        found = own.predict(data, 3)
        pd.testing.assert_frame_equal(found, expected.iloc[:, first:end], rtol=1e-4, atol=1e-4)
        last = "2013-11-11" if settings["refit"] == "final" else "2013-11-09 00"
        assert own.model_.trained_on["last"].startswith(last)
        if bounds:
            upper = own.predict_interval(data, 3).upper
            pd.testing.assert_frame_equal(upper, bounds.upper.iloc[:, first:end], rtol=1e-4)


KILLED = {
    "before a refit": lambda about: about.get("refit") and about["task"] == "join",
    "within it": lambda about: about.get("index") == 3,
    "before the last": lambda about: "all" in about.get("refit", "") and about["task"] == "join",
    "at the end": lambda about: about["task"] == "finish",
}
"""When the server is killed, by what it asks a node for."""


@pytest.mark.sampled(8)
@pytest.mark.parametrize("secure", [None, SecureSums()])
@pytest.mark.parametrize("when", KILLED)
def test_a_server_that_is_killed_in_refits_goes_on(
    when, secure, federation, cube, tmp_path, monkeypatch
):
    """Also under secure aggregation, at any place; the numbers stay those of one process."""
    run, link, _ = federation("fedavg", secure=secure, refit="final", refit_rounds=2)
    honest, killed = link.answer, []

    def answer(run, config, message):
        if KILLED[when](message.about) and not killed:
            killed.append(when)
            raise KeyboardInterrupt
        return honest(run, config, message)

    link.answer = answer
    with pytest.raises(KeyboardInterrupt):
        serve(link, run)
    monkeypatch.setattr("secrets.token_hex", lambda n: TOKEN)
    assert serve(link, run)["nodes"] == 2
    expected = in_one_process(run, cube).predict(cube, 3)
    for name, (first, end) in SHARES.items():
        own = Forecaster.load(tmp_path / f"{name}.federation" / RUN)
        found = own.predict(tmp_path / f"{name}.nc", 3)
        pd.testing.assert_frame_equal(found, expected.iloc[:, first:end], rtol=1e-4)


def test_a_node_that_cannot_write_is_not_let_in(federation, tmp_path, caplog):
    run, link, _ = federation()
    (tmp_path / "file").touch()
    link.configs[1] |= {"out": str(tmp_path / "file" / "b")}
    with pytest.raises(InputError, match="1 of 3 "):
        serve(link, run)
    assert mentions(caplog.text, "/file/b/run-0123456789abcdef:", "directory)")


def test_results_of_a_finished_run_are_kept(federation, tmp_path):
    """Also from `flwr run` of an app that has other settings."""
    run, link, _ = federation("fedavg")
    serve(link, run)
    before = {path: path.read_bytes() for path in (tmp_path / "server").rglob("*.*")}
    other, link, _ = federation("fedavg", lr=0.1)
    with pytest.raises(InputError, match=r"finished .*`stforec"):
        serve(link, other)
    assert before == {path: path.read_bytes() for path in (tmp_path / "server").rglob("*.*")}


def test_a_folder_in_which_a_run_writes_is_refused(federation, tmp_path):
    """As when an app is started twice."""
    run, link, _ = federation("fedavg")
    again, honest, refused = NodeLink(run, link.configs), link.answer, []

    def answer(*about):
        if not refused:
            with pytest.raises(InputError, match=r"process \d+ .*writing") as e:
                serve(again, run)
            refused.append(e)
        return honest(*about)

    link.answer = answer
    assert serve(link, run)["nodes"] == 2
    assert refused[0].value.typed.endswith("wait for it or choose another --results")
    assert not again.sent


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_no_raw_or_scaled_value_crosses(method, federation, cube):
    run, link, _ = federation(method)
    serve(link, run)
    raw = cube["internet"].to_numpy()
    z = (raw - np.nanmean(raw[:168], axis=0)) / np.nanstd(raw[:168], axis=0)
    series = np.unique(np.concatenate([raw.ravel(), z.ravel()]).astype(np.float32))
    crossed = 0
    for message in link.sent:
        assert set(message.payload) <= {"prototypes", "positive", "negative"} or method == "fedavg"
        for t in message.payload.values():
            crossed += t.numel()
            assert not np.isin(t.numpy(), series).any()
        assert "11" not in json.dumps(message.about.get("clients", ""))
    assert crossed


def test_a_node_without_its_file_is_told_of_and_not_let_in(federation, caplog):
    run, link, _ = federation()
    link.configs[1] = {**link.configs[1], "data": "nowhere.nc"}
    with pytest.raises(InputError, match=r"1 of 3 .*0.1 s .*1, 2\)"):
        serve(link, run)
    assert mentions(caplog.text, "node 1", "nowhere.nc: no")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"data": "x.nc"}, "no usable 'first-client'"),
        ({"first-client": 0}, "no usable 'data'"),
    ],
)
def test_a_node_needs_its_configuration(config, reason):
    with pytest.raises(InputError, match=reason):
        NodePlace.of(config, TOKEN)


def test_numbers_beyond_the_federation_are_refused(federation):
    run, link, _ = federation()
    with pytest.raises(InputError, match=r"2 clients .*number 2"):
        FlowerNode(run, NodePlace.of({**link.configs[1], "first-client": 2}, TOKEN))


def test_an_unknown_task_is_refused(federation):
    run, link, _ = federation()
    with pytest.raises(InputError, match="for 'dance'"):
        link.answer(run, link.configs[0], Message({"task": "dance", "run": TOKEN}))


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("ridge", {}, "ridge .*rounds"),
        ("central", {}, "central .*rounds"),
        ("fuels", {"scale": "global"}, "others' values"),
        ("fuels", {"refit": "daily"}, "nodes refit"),
        ("fuels", {"engine": "ray"}, "engine is 'ray'"),
        ("fuels", {"target": "validation"}, "no validation"),
        ("fuels", {"delta_coding": True}, "not support delta_coding"),
        ("fedavg", {"slow_share": 0.3, "slow_rounds": 3}, "not simulated"),
        ("fedavg", {"mixing": 0.6, "slow_rounds": 3}, "not simulated"),
        ("fedproto", {"slow_share": 0.3}, "fedproto averages"),
        ("fedproto", {"mixing": 0.6}, "fedproto averages"),
    ],
)
def test_what_nodes_cannot_do_is_refused(method, settings, reason, tmp_path):
    run = RunSettings(resolve(method, **settings), 3, Patience(), str(tmp_path))
    with pytest.raises(InputError, match=reason):
        RunSettings.from_run_config(run.as_run_config())


@pytest.mark.parametrize("settings", [{"slow_share": 0.3}, {"mixing": 0.6}])
def test_secure_sums_and_late_or_mixed_uploads_exclude_each_other(settings, tmp_path):
    config = resolve("fedavg", **settings)
    run = RunSettings(config, 3, Patience(), str(tmp_path), secure=SecureSums())
    with pytest.raises(InputError, match="one round"):
        RunSettings.from_run_config(run.as_run_config())
    alone = RunSettings(config, 3, Patience(), str(tmp_path))
    assert RunSettings.from_run_config(alone.as_run_config()) == alone


def test_more_clients_than_there_are_never_suffice(tmp_path):
    run = RunSettings(resolve("fuels"), 3, Patience(enough=4), str(tmp_path))
    with pytest.raises(InputError, match=r"enough is 4, .*3 "):
        RunSettings.from_run_config(run.as_run_config())


@pytest.mark.parametrize(("clients", "rounds"), [("cell", 11), ("all", 41)])
def test_few_clients_of_a_cell_each_train_fewer_rounds(clients, rounds, tmp_path):
    config = resolve("fedlean", rounds_per_cell=5, refit="never", clients=clients)
    run = RunSettings(config, 2, Patience(), str(tmp_path))
    assert run.config.training.rounds == rounds
    assert RunSettings.from_run_config(run.as_run_config()) == run


@pytest.mark.parametrize("change", [{"settings": "{"}, {"clients": "many"}, {"clients": 0}])
def test_a_damaged_configuration_is_refused(change, federation):
    run, _, _ = federation()
    with pytest.raises(InputError):
        RunSettings.from_run_config({**run.as_run_config(), **change})


def test_owners_of_clients_are_read():
    assert parse_owner("1234567=0-11") == (1234567, range(12))


@pytest.mark.parametrize("text", ["", "7", "7=3", "7=5-3", "north=0-3", "7=0-3,4"])
def test_other_owners_are_refused(text):
    with pytest.raises(InputError, match="number that"):
        parse_owner(text)


@pytest.mark.parametrize(
    ("owners", "reason"),
    [
        ({1: range(2)}, "client 2 .*0 nodes"),
        ({1: range(2), 2: range(1, 3)}, "client 1 .*2 nodes"),
        ({1: range(2), 2: range(2, 5)}, "client 3 .*1 node;"),
    ],
)
def test_each_client_has_one_owner(owners, reason):
    with pytest.raises(InputError, match=reason):
        check_owners(owners, 3)
    check_owners({1: range(2), 2: range(2, 3)}, 3)


def test_the_app_folder_holds_the_run(federation, tmp_path):
    run, _, _ = federation("fuels", tau=0.1)
    run = RunSettings(
        run.config, 12, Patience(5, 6, 3, 9), "it's here\\there", owners={7: range(12)}
    )
    folder = write_app(tmp_path / "app", run)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert RunSettings.from_run_config(project["tool"]["flwr"]["app"]["config"]) == run
    old = {name: v for name, v in run.as_run_config().items() if name != "task"}
    assert read_run(old) == run, "an app from before there were other kinds"
    assert project["project"]["dependencies"] == []
    for end in ("client", "server"):
        name = project["tool"]["flwr"]["app"]["components"][f"{end}app"]
        assert name == f"stforecast_app.{end}:app"
        assert (folder / "stforecast_app" / f"{end}.py").read_text().startswith("from stforecast.")


def test_errors_are_pooled_by_targets(caplog):
    words = {
        1: Finished({"mse": 1.0, "mae": 2.0}, 10),
        2: Finished({"mse": 2.0, "mae": 4.0}, 30),
        3: Finished({"mse": 2.0}, 30),
        4: Finished({"mse": 2.0, "mae": 4.0}, 0),
    }
    errors, left_out, doubtful = mean_test_errors(words, {1: 10, 2: 30, 3: 10, 4: 10})
    assert errors == {"mse": 1.75, "mae": 3.5}
    assert left_out == {3: "its test mae is nan", 4: "its test mse is nan"}
    assert doubtful == {}
    assert all(mentions(caplog.text, f"node {n}", "errors") for n in (3, 4))


def test_a_node_without_any_error_counts_if_errors_have_a_limit():
    words = {n: Finished({"error_rate": e}, 10) for n, e in enumerate((0.0, 0.0, 0.9, 1.2))}
    errors, left_out, _ = mean_test_errors(words, dict.fromkeys(words, 10), ["error_rate"])
    assert errors == {"error_rate": pytest.approx(0.3)}
    assert left_out == {3: "its test error_rate is 1.2"}


@pytest.mark.parametrize("token", [None, 7, "", "../../etc", "0123456789ABCDEF"])
def test_a_server_cannot_choose_a_node_s_folder(token, federation):
    _, link, _ = federation()
    with pytest.raises(InputError, match="calls the run"):
        NodePlace.of(link.configs[0], token)


def test_a_node_does_not_go_on_with_other_data(federation, cube, tmp_path):
    """Also where nothing but the order of its cells differs."""
    run, link, _ = federation("fedavg")
    serve(link, run)
    config = link.configs[1]
    FlowerNode(run, NodePlace.of(config, TOKEN))
    write_cube(cube.isel(cell=[2, 1]), config["data"])
    with pytest.raises(InputError, match=r"round-0002: .*cube"):
        FlowerNode(run, NodePlace.of(config, TOKEN))


def test_a_node_with_another_step_is_refused(federation, tmp_path):
    run, _, _ = federation("fuels")
    other = dataclasses.replace(run, step=pd.Timedelta("10min"))
    with pytest.raises(InputError, match=r"60 minutes, .*10 minutes"):
        FlowerNode(other, NodePlace(tmp_path / "a.nc", 0, tmp_path / "a"))


def test_nodes_follow_the_zone_and_the_unit_of_the_federation(federation, cube, tmp_path):
    """By default those of their own data: windows and units then differ from node to node."""
    run, _, _ = federation("fedlean", extra_lags="2-24")
    alike = RunSettings.from_run_config(
        dataclasses.replace(run, time_zone="Europe/Rome", units="MB").as_run_config()
    )
    assert (alike.time_zone, alike.units) == ("Europe/Rome", "MB")
    own = cube.isel(cell=slice(0, 1))
    other = own.copy().assign_attrs(time_zone="Asia/Tokyo")
    other["internet"] = (own["internet"] / 1000).assign_attrs(units="GB")
    first, second = (
        NodePlace(write_cube(data, tmp_path / name), 0, tmp_path / f"out-{name}")
        for name, data in (("own.nc", own), ("other.nc", other))
    )
    expected, found = (FlowerNode(alike, place).own.data for place in (first, second))
    np.testing.assert_allclose(found.series.values, expected.series.values)
    assert (found.series.units, found.series.time_zone) == ("MB", "Europe/Rome")
    starts = expected.split.train
    np.testing.assert_allclose(
        found.windows(starts).x, expected.windows(starts).x, rtol=1e-4, atol=1e-5
    )
    by_itself = FlowerNode(run, second._replace(out=tmp_path / "alone")).own.data
    assert (by_itself.series.units, by_itself.series.time_zone) == ("GB", "Asia/Tokyo")


@pytest.mark.parametrize(
    ("attrs", "units", "reason"),
    [
        ({"clock": "local"}, "MB", "times .*Europe/Rome"),
        ({}, "mph", "internet .*mph, .*MB"),
    ],
)
def test_a_node_whose_data_cannot_be_converted_is_refused(
    attrs, units, reason, federation, cube, tmp_path
):
    run, _, _ = federation("fuels")
    run = dataclasses.replace(run, time_zone="Europe/Rome", units="MB")
    odd = cube.copy().assign_attrs(attrs)
    odd["internet"] = cube["internet"].assign_attrs(units=units)
    with pytest.raises(InputError, match=reason):
        FlowerNode(run, NodePlace(write_cube(odd, tmp_path / "odd.nc"), 0, tmp_path / "a"))


def test_an_unknown_zone_of_a_federation_is_refused(federation):
    run, _, _ = federation("fuels")
    odd = dataclasses.replace(run, time_zone="Rome")
    with pytest.raises(InputError, match="zone 'Rome'"):
        RunSettings.from_run_config(odd.as_run_config())


@pytest.mark.repeats
def test_the_server_reports_epsilon(federation, tmp_path):
    pytest.importorskip("dp_accounting")
    run, link, _ = federation("fedavg", clip=1.0, noise="gaussian", noise_std=5.0)
    run = dataclasses.replace(run, unsafe_open=True)
    assert serve(link, run)["privacy"]["uploads"] == 2
    assert "differential privacy" in (tmp_path / "server" / "server.log").read_text()


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("fedlean", marks=pytest.mark.repeats),
        pytest.param("fedrep", marks=pytest.mark.slow),
        "fuels",
    ],
)
def test_a_finished_federation_goes_on_with_new_data(
    method, federation, cube, tmp_path, monkeypatch
):
    """All parts begin where they ended, and train on the new samples."""
    lags = {"extra_lags": "2-6", "calendar": "day"} if method == "fedlean" else {"periods": 1}
    run, link, _ = federation(method, split="time:0.6,0.15,0.25", **lags)
    early = cube.isel(time=slice(0, 8 * 24))
    for name, (first, end) in SHARES.items():
        write_cube(early.isel(cell=slice(first, end)), tmp_path / f"{name}.nc")
    serve(link, run)
    with pytest.raises(InputError, match="results already"):
        prepare_continuation(run, Path(run.out), 2)
    further = prepare_continuation(run, tmp_path / "further", 2)
    assert RunSettings.from_run_config(further.as_run_config()).after == TOKEN
    before = {name: checkpoint_of(tmp_path, name, RUN) for name in SHARES}
    for name, (first, end) in SHARES.items():
        write_cube(cube.isel(cell=slice(first, end)), tmp_path / f"{name}.nc")
    other = "f" * 16
    monkeypatch.setattr("secrets.token_hex", lambda n: other)
    begun = FlowerNode(further, NodePlace.of(link.configs[1], other)).node.trainer.state.clients
    ended = before["b"].clients.flat()
    for name, t in begun.flat().items():
        if not name.startswith(("sizes", "memory/")):
            torch.testing.assert_close(t, ended[name])
    assert (begun.sizes > before["b"].clients.sizes).all()
    again = type(link)(further, link.configs)
    about = serve(again, further)
    assert len(pd.read_csv(tmp_path / "further" / "rounds.csv")) == 2 + (method == "fedlean")
    assert np.isfinite(about["test"]["mse"])
    after = checkpoint_of(tmp_path, "b", f"run-{other}").clients.flat()
    trained = [n for n in begun.flat() if n.startswith(("params/", "moments."))]
    assert any((begun.flat()[n] != after[n]).any() for n in trained)


def checkpoint_of(folder, node, run):
    """The last state of a node's clients."""
    return newest_sound(folder / f"{node}.federation" / run / "checkpoints", None).state


def test_a_run_that_has_not_finished_cannot_go_on(federation, tmp_path):
    run, _, _ = federation()
    with pytest.raises(InputError, match="finished federation"):
        prepare_continuation(run, tmp_path / "further", 2)


def test_a_node_that_was_not_there_before_begins_anew(federation, caplog):
    run, link, _ = federation()
    FlowerNode(dataclasses.replace(run, after="f" * 16), NodePlace.of(link.configs[0], TOKEN))
    assert "no state" in caplog.text
