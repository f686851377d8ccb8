"""The dashboard for Grafana names what `/metrics` has, and follows the form of dashboards."""

import itertools
import json
import re
from pathlib import Path

import pytest
from in_service import DAYS

from stforecast.service.monitor import monitor
from stforecast.service.update import update

pytest.importorskip("fastapi")
pytest.importorskip("httpx2", reason="starlette's test client needs it")

from fastapi.testclient import TestClient

from stforecast.service.serve import ForecastService, make_app

SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""

WITHOUT_PANEL = {
    "stforecast_service_scored_values",
    "stforecast_service_monitor_timestamp_seconds",
    "stforecast_service_records_end_timestamp_seconds",
}

UNITS = {"short", "s", "percentunit", "reqps", "bool_yes_no"}


@pytest.fixture
def dashboard():
    file = Path(__file__).resolve().parents[3] / "docs" / "grafana.json"
    return json.loads(file.read_text())


@pytest.fixture
def labels(updated):
    """Names of the labels of each metric, once a run is monitored and was asked."""
    run, day = updated
    update(run, day(DAYS + 1))  # The forecast has values now.
    monitor(run)
    client = TestClient(make_app(ForecastService(run)), base_url="http://localhost")
    client.get("/health")
    found = {}
    for line in client.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name, _, rest = line.rpartition(" ")[0].partition("{")
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', rest))
    return found


def targets(dashboard):
    return [target for panel in dashboard["panels"] for target in panel["targets"]]


def test_each_metric_and_label_is_one_of_the_service(dashboard, labels):
    used = set()
    for target in targets(dashboard):
        names = re.findall(r"stforecast_\w+", target["expr"])
        assert names, target
        assert set(names) <= set(labels), "metrics that /metrics has"
        used |= set(names)
        known = SCRAPED.union(*(labels[name] for name in names))
        grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
        asked = set(re.findall(r"[{,]\s*(\w+)[!=]", target["expr"]))
        asked |= {name.strip() for group in grouped for name in group.split(",")}
        asked |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert asked <= known
    assert set(labels) - used == WITHOUT_PANEL
    (instances,) = [one for one in dashboard["templating"]["list"] if one["type"] == "query"]
    assert re.search(r"stforecast_\w+", instances["query"]["query"])[0] in labels


def test_panels_have_units_and_places_of_their_own(dashboard):
    assert {"uid", "title", "panels", "templating", "time", "schemaVersion"} <= set(dashboard)
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    taken = set()
    for panel in dashboard["panels"]:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["title"]
        assert panel["description"].endswith(".")
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, "columns of the grid"
        cells = set(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
        )
        assert not cells & taken, "no panel covers another"
        taken |= cells
        asked = set(re.findall(r"\$\{?(\w+)", json.dumps(panel)))
        assert asked <= variables | {"__rate_interval"}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert len(taken) == 24 * (1 + max(y for _, y in taken)), "no gap"


def test_each_target_of_a_panel_has_a_name_of_its_own(dashboard):
    for panel in dashboard["panels"]:
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names)
        assert all(target["datasource"]["type"] == "prometheus" for target in panel["targets"])
