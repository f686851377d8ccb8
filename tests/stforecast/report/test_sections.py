"""Sections are found by their functions, and are left out where something is missing."""

import pytest

from data_prep.base.errors import InputError
from stforecast.report.section import Section
from stforecast.report.sections import NEEDS, SECTIONS, needs
from stforecast.report.write import ReportPage


def test_every_need_is_one_of_some_section_of_ours():
    used = {name for section in SECTIONS.values() for name in needs(section)}
    assert used == {*NEEDS} - {"model"}


def test_a_section_of_something_unknown_is_refused():
    def weather(rain):
        """Rain."""

    with pytest.raises(InputError, match=r"rain; .*outlook"):
        needs(weather)


def test_a_section_without_its_needs_or_without_content_is_left_out(monkeypatch):
    given = []

    def whole(outlook, room, model=None):
        given.append((outlook, model))
        return Section(str(room), [], [])

    def of_model(model):
        return Section("model", [], [])

    def empty(outlook):
        return None

    def text(board):
        return "text"

    sections = {"a": whole, "b": of_model, "c": empty, "d": text}
    monkeypatch.setattr("stforecast.report.write.SECTIONS", sections)
    page = ReportPage()
    page.add(outlook=1, model=None, room=2)
    assert [section.name for section in page.sections] == ["2"]
    assert given == [(1, None)]
    page.add(outlook=1, model=3, room=4)
    assert [section.name for section in page.sections] == ["2", "4", "model"]
    assert given[1] == (1, 3)
    with pytest.raises(InputError, match=r"d .*str"):
        page.add(board=5)
