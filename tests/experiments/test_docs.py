import re
import shutil

import pytest
from PIL import Image

from experiments.docs import DOCS, PARTS, ROOT, SENT
from experiments.site.markdown import filled, photograph, replaced
from experiments.site.numbers import all_numbers
from stforecast.methods import METHODS as FORECASTS
from vision.methods import METHODS as IMAGES


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("sent", [n for n, m in FORECASTS.items() if not m.pooled]),
        (
            "images sent",
            [n for n, m in IMAGES.items() if m.__module__.startswith("vision.methods.")],
        ),
    ],
)
def test_every_method_has_a_row_of_what_it_sends(part, expected):
    text = (DOCS / "methods.md").read_text()
    table = text.partition(f"<!-- {part}: generated -->")[2].partition("<!--")[0]
    rows = [row.split("|")[1].strip(" `") for row in table.strip().splitlines()[2:]]
    assert rows == expected, "run: python -m experiments.docs"


@pytest.mark.parametrize(
    ("name", "page", "make"),
    [
        *((name, *part) for name, part in PARTS.items()),
        *(pytest.param(name, *part, marks=pytest.mark.slow) for name, part in SENT.items()),
    ],
)
def test_what_is_told_is_what_the_registries_and_results_say(name, page, make):
    text = (DOCS / page).read_text()
    assert f"<!-- {name}: generated -->" in text
    assert replaced(text, name, make) == text, "run: python -m experiments.docs"


def test_numbers_in_the_text_are_those_of_the_results():
    numbers, texts = (
        all_numbers(),
        [p.read_text() for p in (ROOT / "README.md", *DOCS.rglob("*.md"))],
    )
    assert [filled(text, numbers) for text in texts] == texts, "run: python -m experiments.docs"
    assert sum(text.count("<!--=") for text in texts) > 40
    assert all(text.count("<!--=") == text.count("<!--/-->") for text in texts)
    assert not any(re.search("^ *<!--=", text, re.M) for text in texts), "a new block on GitHub"


def test_a_stale_part_is_replaced():
    stale = "a\n<!-- methods: generated -->\noutdated text\n<!-- methods: end -->\nb"
    make = PARTS["methods"][1]
    fresh = replaced(stale, "methods", make)
    assert "outdated" not in fresh
    assert "`fuels`" in fresh
    assert fresh.startswith("a\n<!--")
    assert fresh.endswith("-->\nb")
    assert replaced(fresh, "methods", make) == fresh


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="on Debian: apt-get install chromium")
def test_a_page_is_photographed_below_its_heading(tmp_path):
    (tmp_path / "a.html").write_text('<body style="margin: 280px 0; background: #f00">')
    photograph(tmp_path / "a.html", tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (2090, 1198)
        assert picture.convert("RGB").getpixel((800, 500)) == (255, 0, 0)
