"""Totals over nodes: the sums of their forecasts and bounds, without Flower."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from node_link import TOKEN

from data_prep.base.errors import InputError
from data_prep.cube import open_cube, write_cube
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import Message, Rejected
from stforecast.federated.nodes.node_sums import NodeSums
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower.server_app import serve
from stforecast.flower.settings import RunSettings
from stforecast.flower.totals import REST, check_span, groups_to_add
from stforecast.forecasting.config import resolve
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.groups import Groups, SumErrors

SHARES = {"p": (0, 1), "q": (1, 3), "r": (3, 5)}
FOUR = {"p": (0, 2), "q": (2, 4), "r": (4, 6), "s": (6, 8)}
"""First cell of each node, and the one after its last, with districts."""

SETTINGS = {
    "service": "internet", "split": "time:0.5,0.2,0.3", "rounds": 1, "horizon": 3, "periods": 1,
    "refit": "never", "intervals": "conformal", "model": "mlp", "hidden_size": 8, "device": "cpu",
}  # fmt: skip


@pytest.fixture
def city(federation, cube, tmp_path):
    """Makes a run of three nodes with five cells, and the link to them."""
    noise = np.random.default_rng(1).normal(size=(2, cube.sizes["time"]))
    values = cube["internet"].to_numpy()
    more = np.stack([40 + 3 * noise[0], values[:, 0] * 2 + noise[1]], axis=1)
    further = 30 + 3 * np.random.default_rng(2).normal(size=(len(values), 4))
    more = np.concatenate([more, further], axis=1)
    ids = [*cube["cell"].to_numpy().tolist(), 44, 55, 66, 77, 88, 99]
    whole = xr.Dataset(
        {"internet": (("time", "cell"), np.concatenate([values, more], axis=1))},
        {"time": cube["time"], "cell": ids},
        cube.attrs,
    )
    whole["internet"].attrs = cube["internet"].attrs

    def make(method="fedavg", share=(True, True, True, True), groups=(), **settings):
        """`groups` are the districts of all cells, of four nodes instead of three."""
        own = {"secure": SecureSums(), "totals": True, **settings}
        patience = own.pop("patience", Patience(0.1, 1, 0.01, min_parties=3))
        run = RunSettings(
            resolve(method, **{**SETTINGS, **own.pop("of_run", {})}), len(groups) or 5, patience,
            str(tmp_path / "server"), units="MB", time_zone="Europe/Rome", **own,
        )  # fmt: skip
        _, link, _ = federation()
        link.run, link.configs = run.as_run_config(), {}
        for i, (name, (first, end)) in enumerate((FOUR if groups else SHARES).items()):
            part = whole.isel(cell=slice(first, end))
            if groups:
                part = part.assign_coords(district=("cell", list(groups[first:end])))
            path = write_cube(part, tmp_path / f"{name}.nc")
            link.configs[i] = {
                "data": str(path), "first-client": first, "share-totals": share[i],
                "allow-disclosure": True, "groups": "district" if groups else "",
            }  # fmt: skip
        return run, link, whole.isel(cell=slice(len(groups) or 5))

    return make


def of_one_process(tmp_path, whole):
    """Forecasts, bounds and tested sums of all nodes' cells, from each node's own model."""
    nodes = [Forecaster.load(tmp_path / f"{name}.federation" / f"run-{TOKEN}") for name in SHARES]
    data = [tmp_path / f"{name}.nc" for name in SHARES]
    found = [node.outlook(path) for node, path in zip(nodes, data, strict=True)]
    tested = xr.concat([node.tested() for node in nodes], "cell", join="outer")
    groups = Groups.of_columns({}, whole["cell"].to_numpy())
    forecast = pd.concat([of for of, _ in found], axis=1)
    sides = (pd.concat([interval[i] for _, interval in found], axis=1) for i in (0, 1))
    interval = type(found[0][1])(*sides)
    for bound in interval:
        bound.attrs = found[0][1].lower.attrs
    errors = SumErrors.of(tested, groups)
    sums = groups.sum_table(forecast)
    return sums, errors.bounds(sums, (forecast, interval), groups), errors


@pytest.mark.parametrize(
    ("method", "secure"), [("fedavg", SecureSums()), ("fedproto", None)], ids=["masked", "plain"]
)
def test_totals_are_the_sums_of_one_process(method, secure, city, tmp_path):
    run, link, whole = city(method, secure=secure)
    about = serve(link, run)["totals"]
    assert (about["nodes"], about["clients"], about["left_out"]) == (3, 5, {})
    found = pd.read_csv(tmp_path / "server" / "totals.csv")
    sums, interval, errors = of_one_process(tmp_path, whole)
    for time, expected in zip(pd.to_datetime(found["time"]), sums.index, strict=True):
        assert time == expected
    for column, table in (
        ("forecast", sums), ("lower", interval.lower.clip(0)), ("upper", interval.upper),
    ):  # fmt: skip
        np.testing.assert_allclose(found[column], table["all"], rtol=1e-6)
    assert about["coverage"] == pytest.approx(errors.coverage["all"], abs=0.02)
    if secure:
        named = whole.assign_coords(city=("cell", ["town"] * 5))
        forecaster = Forecaster.recorded(run.config.flat()).fit(named)
        trained, bounds = forecaster.predict_groups("city", named)
        np.testing.assert_allclose(found["forecast"], trained["city town"], rtol=1e-3)
        np.testing.assert_allclose(found["upper"], bounds.upper["city town"], rtol=1e-2)


def test_the_server_sees_no_values_of_a_node(city, tmp_path):
    run, link, _ = city()
    serve(link, run)
    answers = [message for message in link.sent if "sum" in message.payload]
    totals = max(len(message.payload["sum"]) for message in answers)
    own = Forecaster.load(tmp_path / "p.federation" / f"run-{TOKEN}").tested()
    assert totals == 3 * (5 * own.sizes["time"] + 4)
    readings = np.round(own["y"].to_numpy().ravel() * 2**28).astype(np.int64)
    for message in answers:
        assert not np.isin(readings, message.payload["sum"].numpy()).any()


def test_owners_who_do_not_share_are_left_out_and_two_nodes_have_no_totals(city, tmp_path):
    run, link, _ = city(share=(True, True, False))
    about = serve(link, run)["totals"]
    assert about["lost"] == "2 nodes can add to them, 3 or more must"
    assert about["left_out"][2].startswith("the server asks for totals")
    assert not (tmp_path / "server" / "totals.csv").exists()


def test_a_node_whose_data_end_earlier_is_left_out(city, tmp_path):
    run, link, _ = city()
    with open_cube(link.configs[1]["data"]) as part:
        shorter = part.load().isel(time=slice(None, -5))
    write_cube(shorter, link.configs[1]["data"])
    about = serve(link, run)["totals"]
    assert "data end" in about["left_out"][1]
    assert about["lost"].startswith("2 nodes")


FIRST, LAST, END = "2013-11-08 00:00", "2013-11-10 20:00", "2013-11-10 23:00"


@pytest.mark.parametrize(
    "hostile",
    [
        {"end": f"{END}+00:00", "first": f"{FIRST}+00:00", "last": f"{LAST}+00:00"},
        {"first": "2013-11-08 00:30"},
        {"last": "2014-01-01 00:00"},
        {"first": "NaT"},
        {"low": "none"},
        {"end": None},
        {"groups": []},
        {"groups": None},
        {"groups": ["a" * 101]},
        {"groups": ["a\x1b[2J"]},
        "a text that is no answer",
    ],
)
def test_a_span_that_cannot_be_is_rejected(hostile):
    sound = {"first": FIRST, "last": LAST, "end": END, "low": 0.0, "groups": [""]}
    hour = pd.Timedelta("1h")
    assert check_span(Message(sound), hour).low == 0
    with pytest.raises(Rejected):
        check_span(hostile if isinstance(hostile, str) else Message(sound | hostile), hour)


def test_a_node_cannot_end_the_run_by_a_false_span(city):
    run, link, _ = city()
    sound = link.answer

    def answer(run, config, message):
        found = sound(run, config, message)
        if message.about["task"] == "span" and config["first-client"] == 0:
            found.about["last"] = found.about["first"] = "2013-11-05 00:00:00"
        return found

    link.answer = answer
    assert "test part" in serve(link, run)["totals"]["lost"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patience": Patience(0.1, 1, 0.01, min_parties=2)}, "min_parties"),
        ({"of_run": {"intervals": "none"}}, "intervals"),
    ],
)
def test_what_totals_need_is_checked_before_the_app_is_written(settings, message, city):
    run, _, _ = city(**settings)
    with pytest.raises(InputError, match=message):
        run.check()


def test_a_run_without_totals_is_asked_for_none(federation, tmp_path):
    run, link, _ = federation()
    assert "totals" not in serve(link, run)
    assert not any(message.about.get("task") == "span" for message in link.sent)


@pytest.fixture
def learned(monkeypatch):
    """All sums that the server unmasks, in their order."""
    found, sum_over = [], NodeSums.sum_over

    def recorded(self, *args, **settings):
        answer = sum_over(self, *args, **settings)
        found.append(answer[1])
        return answer

    monkeypatch.setattr(NodeSums, "sum_over", recorded)
    return found


def readings_of(tmp_path, name):
    """Tested readings of a node's cells, `(cells, windows * horizon)`."""
    tested = Forecaster.load(tmp_path / f"{name}.federation" / f"run-{TOKEN}").tested()
    return tested["y"].to_numpy().reshape(tested.sizes["cell"], -1)


def misses(target, known):
    """Relative error of the best linear combination of what is known, `(rows, values)`."""
    found, *_ = np.linalg.lstsq(known.T, target, rcond=None)
    return np.linalg.norm(known.T @ found - target) / np.linalg.norm(target)


def test_groups_on_three_nodes_have_totals_that_add_up(city, tmp_path):
    run, link, whole = city(groups="abababba")
    about = serve(link, run)["totals"]
    assert {name: of["nodes"] for name, of in about["groups"].items()} == {
        "district a": 4, "district b": 4,
    }  # fmt: skip
    assert about["groups_left_out"] == {}
    found = pd.read_csv(tmp_path / "server" / "totals.csv").pivot(
        index="time", columns="group", values=["forecast", "lower", "upper"]
    )
    parts = [
        Forecaster.load(tmp_path / f"{name}.federation" / f"run-{TOKEN}").outlook(
            tmp_path / f"{name}.nc"
        )
        for name in FOUR
    ]
    forecast = pd.concat([of for of, _ in parts], axis=1)
    own = whole["cell"].to_numpy()[[of == "a" for of in "abababba"]]
    of_a = forecast[own].sum(axis=1)
    np.testing.assert_allclose(found["forecast"]["district a"], of_a, rtol=1e-6)
    np.testing.assert_allclose(found["forecast"]["all"], forecast.sum(axis=1), rtol=1e-6)
    assert (found["lower"] <= found["forecast"]).all(axis=None)
    assert (found["forecast"] <= found["upper"]).all(axis=None)
    assert 0.5 < about["groups"]["district a"]["coverage"] <= 1


@pytest.mark.parametrize(
    ("groups", "left_out"),
    [
        ("aaaaaabb", {"district a", "district b"}),  # The total less district a is a node's.
        pytest.param("abababcc", {"district b", "district c"}, marks=pytest.mark.repeats),  # Both.
        pytest.param("abababac", {"district b", "district c"}, marks=pytest.mark.repeats),
    ],
)
def test_nothing_that_is_learned_gives_a_node_s_sum(groups, left_out, city, learned, tmp_path):
    run, link, _ = city(groups=groups)
    about = serve(link, run)["totals"]
    assert set(about["groups_left_out"]) == left_out
    own = {name: readings_of(tmp_path, name) for name in FOUR}
    known = learned[-1]["tested"][0].flatten(1).numpy()
    sums = [of[[g == district for g in groups[slice(*FOUR[name])]]].sum(axis=0)
            for name, of in own.items() for district in {*groups[slice(*FOUR[name])]}]  # fmt: skip
    whole = [of.sum(axis=0) for of in own.values()]
    sums += [*whole, *(a + b for a, b in combinations(whole, 2))]
    assert min(misses(target, known) for target in sums) > 1e-3
    every = np.concatenate([*own.values()])
    districts = [every[[g == d for g in groups]].sum(axis=0) for d in sorted({*groups})]
    assert min(misses(target, np.array(districts)) for target in sums) < 1e-9


def of_fewer_nodes(held, sums):
    """Whether a combination of sums depends on one or two nodes, by the names in each sum."""
    parts = [(node, name) for node, names in held.items() for name in names]
    matrix = np.array([[name in of for _, name in parts] for of in sums], dtype=float)
    rank = np.linalg.matrix_rank
    return any(
        rank(matrix) > rank(matrix[:, [node not in (a, b) for node, _ in parts]])
        for a in held
        for b in held
    )


def test_no_combination_of_groups_and_total_is_of_fewer_than_three_nodes():
    """A combination of few nodes lies in the span of all sums and is 0 on all other nodes."""
    rng, careless = np.random.default_rng(0), 0
    for _ in range(300):
        held = {
            node: {str(name) for name in rng.choice(["a", "b", "c", "d", REST], rng.integers(1, 4))}
            for node in range(rng.integers(3, 7))
        }
        found, left_out = groups_to_add(held, 3, 10)
        names = set().union(*held.values())
        assert names - {REST} == (found.keys() - {REST}) | left_out.keys()
        rest = names - (found.keys() - {REST})
        sums = [{name} for name in found if name != REST] + [rest] * bool(rest)
        assert not of_fewer_nodes(held, [*sums, names])
        large = [{n} for n in names if sum(n in of for of in held.values()) >= 3]
        careless += of_fewer_nodes(held, [*large, names])
    assert careless > 30


def test_only_as_many_groups_are_added_as_fit():
    held = {node: {"a", "b", "c"} for node in range(4)}
    found, left_out = groups_to_add(held, 3, 2)
    assert found == {"a": 4, "b": 4, REST: 4}
    assert "2 groups" in left_out["c"]


def lost_in_totals(link, first_client):
    """Let a node fail to answer when it is asked for its masked values of the totals."""
    sound, asked = link.answer, []

    def answer(run, config, message):
        asked.append(message.about["task"])
        if asked[-1] == "mask" and "total" in asked and config["first-client"] == first_client:
            raise InputError("lost")
        return sound(run, config, message)

    link.answer = answer


def test_groups_are_counted_again_without_a_node_that_is_lost(city, learned, tmp_path):
    run, link, _ = city(groups="ababbbaa")
    lost_in_totals(link, 6)
    about = serve(link, run)["totals"]
    assert (about["nodes"], list(about["groups"])) == (3, [])
    assert set(about["groups_left_out"]) == {"district a", "district b"}
    assert about["left_out"] == {3: "it left the sum"}
    of_totals = [of for of in learned if "tested" in of]
    assert [of["tested"].shape[1] for of in of_totals] == [1]


def test_nodes_reveal_no_sums_of_groups_without_one_of_them(city, monkeypatch):
    run, link, _ = city(groups="ababbbaa")
    lost_in_totals(link, 6)
    sum_over = NodeSums.sum_over

    def careless(self, *args, fewest=0, **settings):
        return sum_over(self, *args, **settings)

    monkeypatch.setattr(NodeSums, "sum_over", careless)
    serve(link, run)
    asked = [len(m.about["stayed"]) for m in link.sent if "stayed" in m.about]
    revealed = [m for m in link.sent if "shares" in m.about]
    assert asked[-3:] == [3, 3, 3]
    assert len(revealed) == len(asked) - 3


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "plan", [{"district a": 2, REST: 4}, {"district a": 4, REST: 1}, {"district a": 4, REST: 0}]
)
def test_a_node_refuses_groups_on_too_few_nodes(plan, city, monkeypatch):
    run, link, _ = city(groups="ababbbaa")
    monkeypatch.setattr("stforecast.flower.totals.groups_to_add", lambda *_: (plan, {}))
    assert serve(link, run)["totals"]["lost"].endswith("3 or more must")


def test_readings_of_a_step_are_in_the_sums_of_all_its_windows_or_of_none(city, learned, tmp_path):
    """A cell with a bound at some steps ahead only would be the difference of two windows."""
    run, link, _ = city()
    with open_cube(link.configs[1]["data"]) as part:
        changed = part.load()
    n = changed.sizes["time"]
    changed["internet"][n // 2 + 9 : n * 7 // 10 + 3, 1] = np.nan
    write_cube(changed, link.configs[1]["data"])
    serve(link, run)
    tested = Forecaster.load(tmp_path / "q.federation" / f"run-{TOKEN}").tested()
    bounded = np.isfinite(tested["upper"].isel(cell=1)).any("time")
    assert 0 < int(bounded.sum()) < bounded.size
    readings = learned[-1]["tested"][0, 0].numpy()
    for ahead in range(1, readings.shape[1]):
        np.testing.assert_allclose(readings[ahead:, 0], readings[:-ahead, ahead], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ("cell,district,sector\n11,a,x\n22,b,x\n33,b,y", "one level"),
        ("cell,district\n11,a\n22,b", "without a district: 33"),
    ],
)
def test_faults_of_a_table_of_groups_are_found_when_a_node_joins(members, message, city, tmp_path):
    run, link, _ = city()
    (tmp_path / "groups.csv").write_text(members)
    config = {**link.configs[1], "groups": str(tmp_path / "groups.csv")}
    with pytest.raises(InputError, match=message):
        link.answer(run, config, Message({"run": TOKEN, "task": "join"}))
