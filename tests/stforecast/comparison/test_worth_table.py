"""The gain from federation: the share of the gap between alone and pooled that it closes."""

import json

import pytest
from mentions import mentions
from result_tables import results_table


@pytest.fixture
def divided(make_run):
    """Writes runs of errors that are the same on all days, with each client's number of cells."""

    def make(clients, sizes, errors, roads=None):
        runs = []
        for method, error in errors.items():
            run = make_run(method, f"{method} {clients}", scores=(error, error), n_days=9)
            path = run.folder / "run.json"
            about = json.loads(path.read_text())
            about["settings"]["clients"] = clients
            if sizes:
                about["cells_of_clients"] = {f"c{i}": n for i, n in enumerate(sizes)}
            if roads:
                about["roads"] = roads
            path.write_text(json.dumps(about))
            runs.append(type(run).open(run.folder))
        return runs

    return make


def test_the_share_of_the_gap_that_is_closed_stands_for_each_number_of_clients(divided, tables):
    runs = [
        *divided("cell", [], {"central": 1.0, "solo": 3.0, "fedavg": 1.5}),
        *divided("kmeans:2", [10, 15], {"solo": 2.0, "fedavg": 1.0}, {"roads": 8, "cut": 2}),
        *divided("kmeans:4", [1, 2, 3, 19], {"solo": 1.0, "fedavg": 1.0}, {"roads": 8, "cut": 4}),
    ]
    text = results_table(runs, {}, reference="central cell")
    header, *rows = next(t for t in tables(text) if t[0][0] == "clients")
    assert header == [
        "clients", "cells of a client", "roads cut, %", "alone, against pooled, %",
        "fedavg, against alone, %", "fedavg, against pooled, %", "fedavg, gap closed, %",
    ]  # fmt: skip
    assert [[cell.split()[0] for cell in (*row[:4], *row[6:])] for row in rows] == [
        ["2", "10", "25", "100", "100"],
        ["4", "1", "50", "0", "-"],
        ["25", "1", "-", "200", "75"],
    ]
    assert mentions(text, "milan, **fedavg**", "MSE")
    assert mentions(text, "100 % [100, 100]", "2", "75 % [75, 75]", "25", "4 clients")


@pytest.mark.repeats
def test_without_a_gap_the_sentence_says_so(divided):
    runs = [
        *divided("all", [25], {"solo": 1.0}),
        *divided("kmeans:2", [10, 15], {"solo": 1.0, "fedavg": 1.5}),
        *divided("kmeans:4", [1, 2, 3, 19], {"solo": 0.5, "fedavg": 1.0}),
    ]
    text = results_table(runs, {})
    assert mentions(text, "gap", "2 and 4")
    assert "solo all †" in text


@pytest.mark.repeats
def test_one_division_alone_has_no_such_table(divided):
    runs = divided("cell", [], {"central": 1.0, "solo": 3.0, "fedavg": 1.5})
    assert "The gain from federation" not in results_table(runs, {})
