"""Intervals of accuracies and of their differences, on runs whose accuracies are given."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mentions import mentions
from scipy import stats

from data_prep.base.errors import InputError
from stforecast.bench.run_groups import group_runs
from stforecast.bench.statistics.estimate import Estimate
from vision.cli.compare import UNTOLD, Claim, accuracy_claims, accuracy_comparison, answers
from vision.comparison import compare_accuracies, level, points_above, rows_of
from vision.results import ImageRun

ALL, TASK = "all classes", "task classes"


class Given(ImageRun):
    """A run whose clients' accuracies are in `about`; NaN for a client without test images."""

    def metrics(self):
        found = self.about["accuracies"]
        return pd.DataFrame(
            [
                {
                    "view": "personal", "mask": mask, "selection": "last", "client": str(client),
                    "accuracy": accuracy, "samples": self.about["samples"],
                }
                for mask in (ALL, TASK)
                for client, accuracy in enumerate(found)
                if not np.isnan(accuracy)
            ]
        )  # fmt: skip

    def accuracy(self, selection="last", view=None, mask=ALL):
        return float(np.nanmean(self.about["accuracies"]))


def rows(by_label, samples=50, first_seed=1):
    """Rows from labels to accuracies `(seeds, clients)`; a label is the method, too."""
    runs = [
        Given(
            Path(f"/{label}/{seed}"),
            {
                "settings": {"method": label, "seed": seed}, "label": label, "views": ["personal"],
                "data": "images", "clients": len(accuracies), "accuracies": accuracies,
                "samples": samples,
            },
        )
        for label, seeds in by_label.items()
        for seed, accuracies in enumerate(np.atleast_2d(seeds), first_seed)
    ]  # fmt: skip
    return rows_of(group_runs(runs))


def line(found, name, mask=ALL):
    return next(x for x in found.lines[mask] if x.row.name == name)


def test_the_accuracy_is_the_mean_over_seeds_of_that_over_clients():
    some = np.array([[0.2, 0.4, np.nan], [0.9, 0.6, 0.3]])
    (only,) = compare_accuracies(rows({"solo": some})).lines[ALL]
    assert only.accuracy.value == pytest.approx(100 * (0.3 + 0.6) / 2)
    assert only.points is None


def test_one_seed_has_the_interval_of_a_mean_over_clients():
    accuracies = np.random.default_rng(0).uniform(0.3, 0.7, 40)
    (only,) = compare_accuracies(rows({"solo": accuracies})).lines[ALL]
    reach = stats.t.ppf(0.975, 39) * stats.sem(100 * accuracies)
    assert only.accuracy.high - only.accuracy.value == pytest.approx(reach, rel=0.1)
    assert only.accuracy.low == pytest.approx(2 * only.accuracy.value - only.accuracy.high)


def test_seeds_are_resampled_from_three_on():
    rng = np.random.default_rng(3)
    clients = rng.uniform(0.4, 0.6, 30)
    seeds = np.array([-0.1, 0.1, 0.0])[:, None]
    (two,) = compare_accuracies(rows({"solo": clients + seeds[:2]})).lines[ALL]
    reach = stats.t.ppf(0.975, 29) * stats.sem(100 * clients)
    assert two.accuracy.high - two.accuracy.value == pytest.approx(reach, rel=0.1)
    (three,) = compare_accuracies(rows({"solo": clients + seeds})).lines[ALL]
    between = stats.t.ppf(0.975, 2) * stats.sem(100 * seeds[:, 0])
    assert three.accuracy.high - three.accuracy.value > 0.8 * between > 3 * reach


def test_differences_are_paired_by_seed_and_client():
    theirs = np.random.default_rng(1).uniform(0.1, 0.8, (3, 10))
    found = compare_accuracies(
        rows({"fedavg": theirs + 0.05, "solo": theirs}), [ALL, TASK], "fedavg"
    )
    points = line(found, "solo", TASK).points
    assert (points.value, points.low, points.high) == pytest.approx((-5, -5, -5))
    assert line(found, "solo").accuracy.high - line(found, "solo").accuracy.low > 5
    first, second = accuracy_claims(found, "images")
    assert (
        first == "On images, choosing from all classes, **fedavg** beats solo by 5 points [5, 5]."
    )
    assert "task classes" in second
    best, other = accuracy_comparison(found)
    assert best["all classes, against fedavg"] == "-"
    assert other["all classes, against fedavg"] == "-5 [-5, -5]"


def test_no_difference_exceeds_100_points():
    found = compare_accuracies(rows({"gldp": [[1.0, 0.6]], "solo": [[0.0, 0.5]]}))
    points = line(found, "solo").points
    assert points.value == pytest.approx(-55)
    assert (points.low, points.high) == (-100, 100)  # Student's t with one degree of freedom


def test_a_difference_that_may_be_zero_is_not_claimed():
    rng = np.random.default_rng(2)
    theirs = rng.uniform(0.4, 0.6, (3, 8))
    ours = theirs + np.tile([0.05, -0.04], (3, 4))
    said = accuracy_claims(
        compare_accuracies(rows({"fedavg": theirs, "solo": ours}), reference="solo"), "images"
    )
    assert len(said) == 1
    assert mentions(said[0], "**solo**", "significantly", "fedavg (0")


def test_sentences_name_the_best_model_of_each_other_method():
    found = compare_accuracies(
        rows({"fedavg": [[0.5, 0.6]] * 2, "solo": [[0.3, 0.4]] * 2}), reference="solo"
    )
    best, lower = line(found, "fedavg"), Estimate(10, 9, 11)
    worse = best._replace(accuracy=lower, points=lower)
    for lines in ([best, worse], [worse, best]):
        given = found._replace(lines={ALL: [line(found, "solo"), *lines]})
        (said,) = accuracy_claims(given, "images")
        assert said.endswith("**solo** is behind fedavg by 20 points [20, 20].")


def test_the_best_method_is_compared_with_references_but_none_of_them_leads():
    levels = {"solo": 0.5, "fedavg": 0.6, "chance": 0.1, "linear_probe": 0.9}
    found = compare_accuracies(
        rows({name: np.full((2, 3), level) for name, level in levels.items()})
    )
    assert found.reference == "fedavg"
    said = accuracy_claims(found, "images")
    assert "linear_probe by 30 points" in said[1]
    with pytest.raises(InputError, match="unknown reference 'fedprox'"):
        compare_accuracies(rows({"solo": [[0.5, 0.6]]}), reference="fedprox")


def test_only_common_seeds_and_images_are_compared():
    one, other = rows({"fedavg": [[0.5, 0.6]] * 3}), rows({"solo": [[0.4, 0.3]]})
    assert line(compare_accuracies([*one, *other]), "solo").points.value == pytest.approx(-20)
    later = rows({"solo": [[0.4, 0.3]]}, first_seed=9)
    assert line(compare_accuracies([*one, *later]), "solo").points is None
    with pytest.raises(InputError, match=r"solo .*images"):
        compare_accuracies([*one, *rows({"solo": [[0.4, 0.3]]}, samples=60)])


class Retaining(Given):
    """A run of two stages; `about` has right predictions of 10 by view, stage and client."""

    def metrics(self):
        return pd.concat(
            [super(Retaining, self).metrics().assign(view=v) for v in self.about["views"]]
        )

    def stages(self):
        return pd.DataFrame(
            [
                {
                    "round": stage, "stage": stage, "test_stage": on, "view": view, "mask": ALL,
                    "client": client, "participant": True, "right": right, "samples": 10,
                }
                for view, found in self.about["right"].items()
                for (stage, on), clients in found.items()
                for client, right in enumerate(clients)
            ]
        )  # fmt: skip


def retaining(label, right):
    """The row of one run; its first view is `personal`."""
    about = {
        "settings": {"method": label, "seed": 1}, "label": label, "views": ["personal", "global"],
        "data": "images", "clients": 3, "accuracies": [0.5] * 3, "samples": 20, "right": right,
    }  # fmt: skip
    return rows_of(group_runs([Retaining(Path(f"/{label}"), about)]))[0]


def test_what_is_retained_is_compared_over_the_clients_that_had_something_to_retain():
    kept = retaining("a", {"personal": {(0, 0): [8, 5, 4], (1, 0): [8, 5, 2], (1, 1): [9, 9, 9]}})
    lost = retaining("b", {"personal": {(0, 0): [8, 4, 0], (1, 0): [4, 1, 3], (1, 1): [9, 9, 9]}})
    assert level(kept, ALL, "KR_t").value == pytest.approx(100 * (1 + 1 + 0.5) / 3)
    assert level(lost, ALL, "KR_t").value == pytest.approx(100 * (0.5 + 0.25) / 2)
    # The third client of the second row had nothing to retain, so it counts in neither.
    assert points_above(kept, lost, ALL, "KR_t").value == pytest.approx(100 * (0.5 + 0.75) / 2)


def test_the_shared_model_is_compared_with_clients_own():
    own = {(0, 0): [8, 5, 4], (1, 0): [8, 5, 2], (1, 1): [8, 4, 5]}
    shared = {(0, 0): [8, 5, 4], (1, 0): [8, 5, 2], (1, 1): [4, 4, 10]}
    row = replace(retaining("a", {"personal": own, "global": shared}), view="global")
    assert level(row, ALL, "KR_s").value == pytest.approx(100 * (0.5 + 1 + 2) / 3)


class Staged(Given):
    """A run of two stages, in which a client has the given hits of ten on the first one."""

    def stages(self):
        rows = [
            {
                "round": 1 + stage, "stage": stage, "test_stage": 0, "view": "personal",
                "mask": ALL, "client": 0, "participant": True, "right": right, "samples": 10,
            }
            for stage, right in enumerate(self.about["hits"])
        ]  # fmt: skip
        return pd.DataFrame(rows)


def test_seeds_in_which_nothing_was_known_retain_nothing():
    (row,) = rows({"fedta": [[0.5], [0.5]]})
    runs = [
        Staged(run.folder, {**run.about, "hits": hits, "settings": {**run.settings, "size": 0}})
        for run, hits in zip(row.group.runs, ([0, 0], [8, 4]), strict=True)
    ]
    (some,) = rows_of(group_runs(runs))
    assert level(some, ALL, "KR_t").value == pytest.approx(50)
    (none,) = rows_of(group_runs(runs[:1]))
    with pytest.raises(InputError, match="fedta: no"):
        level(none, ALL, "KR_t")
    claim = Claim("is retained", row="fedta", measure="KR_t", least=10.0)
    (table, _) = answers([claim], runs[:1])
    assert list(table[0].values())[2:] == [
        "not compared: fedta: no client had anything to retain", UNTOLD,
    ]  # fmt: skip
