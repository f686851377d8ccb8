import pytest
from mentions import mentions
from result_tables import results_table

from data_prep.base.errors import InputError
from stforecast.bench.grid_file import parse_published

TABLE = {
    "source": "FUELS, Table 1",
    "mse": {"internet": {"fuels": 0.25, "solo": 1.5}, "sms": {"fuels": 9}},
    "mae": {"sms": {"fuels": 0.541}},
}


def parsed(table=TABLE, services=("internet", "sms")):
    return parse_published(table, ["fuels", "solo", "ridge"], services)


def test_numbers_stand_in_columns_of_their_own(make_run, tables):
    runs = [make_run(m, scores=(7.0, 7.0), federated=m != "ridge") for m in ("ridge", "fuels")]
    text = results_table(runs, {}, parsed())
    header, *rows = tables(text)[0]
    assert header[-1] == "MSE as published*"
    assert [(row[0], row[2], row[-1]) for row in rows] == [
        ("ridge", "7.000", "-"),
        ("fuels", "7.000", "0.25"),
    ]
    assert "MAE as published" not in text
    assert mentions(text, "\\*", "FUELS, Table 1")


@pytest.mark.repeats
def test_a_paper_has_no_number_for_another_service_or_model(make_run, tables):
    assert parsed().columns("call", ["fuels"]) == {}
    text = results_table([make_run(service="call")], {}, parsed())
    assert "published" not in text
    assert "FUELS, Table 1" not in text
    selections = ("best", "best (global)", "last", "last (global)")
    run = make_run("solo", selections=selections, scores=(1.0, 2.0, 3.0, 4.0))
    _, *rows = tables(results_table([run], {}, parsed()))[0]
    assert [row[-1] for row in rows] == ["1.50", "-"]


def test_numbers_are_as_long_as_the_longest():
    assert parsed().columns("internet", ["solo", "x", "fuels"]) == {
        "MSE as published*": ["1.50", "-", "0.25"]
    }


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"mse": {"sms": {"fuels": 1}}}, 'source = "…"'),
        ({"source": "x"}, "source .*numbers"),
        (
            {"source": "x", "rmse": {}},
            "'rmse'; .*A_glo, A_loc, accuracy, mae, mse",
        ),
        ({"source": "x", "mse": {"sms": {"fuel": 1}}}, "published.mse.sms: unknown label 'fuel'"),
        ({"source": "x", "mse": {"net": {"fuels": 1}}}, "published.mse: unknown service 'net'"),
        ({"source": "x", "mse": {"sms": {"fuels": "low"}}}, "number by"),
        ({"source": "x", "mse": {"sms": {}}}, "a service"),
    ],
)
def test_what_is_not_there_is_refused(table, message):
    with pytest.raises(InputError, match=message):
        parsed(table)


def test_any_service_may_be_the_only_one():
    assert parsed(services=[None]).columns("sms", ["fuels"])["MSE as published*"] == ["9.0"]
