import re

import pytest

from data_prep import DATA_SETS
from data_prep.readers.formats import FORMATS
from stforecast.baselines import BASELINES
from stforecast.cli.lists import LISTS, methods_table
from stforecast.data.splits import SPLITS
from stforecast.methods import METHODS
from stforecast.metrics import INTERVAL_METRICS, METRICS
from stforecast.models import MODELS
from stforecast.plots import PLOTS
from stforecast.report.sections import SECTIONS
from vision.cli.commands import IMAGE_LISTS, image_methods_table
from vision.datasets import DATASETS
from vision.methods import METHODS as IMAGE_METHODS
from vision.models import MODELS as IMAGE_MODELS
from vision.partition import PARTITIONS
from vision.plots import PLOTS as IMAGE_PLOTS
from vision.streams import STREAMS


def first_words(text):
    return {line.split()[0] for line in text.splitlines() if line}


@pytest.mark.parametrize(
    ("lists", "what", "names"),
    [
        (LISTS, "methods", [*METHODS, *BASELINES]),
        (LISTS, "data", DATA_SETS),
        (LISTS, "formats", FORMATS),
        (LISTS, "models", MODELS),
        (LISTS, "metrics", [*METRICS, *INTERVAL_METRICS]),
        (LISTS, "plots", PLOTS),
        (LISTS, "sections", SECTIONS),
        (LISTS, "splits", SPLITS),
        (IMAGE_LISTS, "methods", IMAGE_METHODS),
        (IMAGE_LISTS, "data", DATASETS),
        (IMAGE_LISTS, "partitions", [*PARTITIONS, *STREAMS]),
        (IMAGE_LISTS, "models", IMAGE_MODELS),
        (IMAGE_LISTS, "plots", IMAGE_PLOTS),
    ],
)
def test_lists_name_everything_and_fit_a_hundred_columns(lists, what, names):
    tables = lists[what]()
    text = "\n\n".join(map(str, tables))
    assert {record["name"] for table in tables for record in table.records()} == set(names)
    assert set(names) <= first_words(text)
    assert max(map(len, text.splitlines())) <= 100


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_the_methods_table_is_markdown_of_every_method():
    _, _, *rows = cells(methods_table())
    assert [row[0] for row in rows] == [f"`{m}`" for m in [*METHODS, *BASELINES]]
    pooled = {row[0] for row in rows if row[2] == "yes"}
    known = {**METHODS, **BASELINES}
    assert pooled == {f"`{name}`" for name, method in known.items() if method.pooled}
    assert {"`central`", "`boosting`"} <= pooled


def test_the_text_on_image_methods_names_every_one_once():
    shared, table = image_methods_table().split("\n\n")
    named = re.findall("`[^`]+`", shared) + [row[0] for row in cells(table)[2:]]
    assert sorted(named) == sorted(f"`{m}`" for m in IMAGE_METHODS)
