"""Cells of a workbook: as openpyxl reads them, in little time and memory."""

import datetime
import zipfile

import pytest

openpyxl = pytest.importorskip("openpyxl", reason="the extra excel is not installed")

from data_prep.base.errors import InputError  # noqa: E402  after the check for openpyxl
from data_prep.readers.decode import read_table  # noqa: E402
from data_prep.readers.formats.excel import open_book  # noqa: E402
from data_prep.sets.table import read  # noqa: E402

DAY = datetime.datetime(2024, 3, 1, 13, 5, 7)
SHEET = "xl/worksheets/sheet1.xml"


def saved(folder, *rows):
    """Save a workbook of one sheet and return it with its path."""
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(folder / "book.xlsx")
    return folder / "book.xlsx"


def rewritten(path, change):
    """Write a workbook again, with other XML of its first sheet."""
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    parts[SHEET] = change(parts[SHEET].decode()).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in parts.items():
            new.writestr(name, content)
    return path


def test_cells_are_as_openpyxl_reads_them(tmp_path):
    rows = [
        ["time", None, "näme & <b>", " spaces "],
        [],
        [DAY, DAY.date(), DAY.time(), datetime.timedelta(hours=30, minutes=1)],
        [1, 2.5, -3e-7, True, False],
        [None, None, "#DIV/0!", "=1+1"],
        ["x", 1e300, 12345678901234567890, "a\nb"],
    ]
    path = saved(tmp_path, *rows)
    with open_book(path) as book:
        found, merged = book.rows("Sheet")
    expected = openpyxl.load_workbook(path, data_only=True).active.iter_rows(values_only=True)
    for row, values in zip(found, expected, strict=True):
        assert [*row, *[None] * (len(values) - len(row))] == list(values)
    assert not merged


def test_texts_of_several_pieces_and_their_guides(tmp_path):
    path = saved(tmp_path, ["time", "n"], [DAY, 1])
    pieces = "<is><r><t>n</t></r><r><t>ame</t></r><rPh sb='0' eb='1'><t>ネ</t></rPh></is>"
    path = rewritten(path, lambda xml: xml.replace("<is><t>n</t></is>", pieces))
    assert list(read_table(path)[0]) == ["time", "name"]


def test_a_format_in_the_last_row_costs_nothing(tmp_path):
    path = saved(tmp_path, ["time", "n"], [DAY, 1])
    book = openpyxl.load_workbook(path)
    book.active.cell(1_048_576, 1).number_format = "0.00"
    book.save(path)
    with open_book(path) as read:
        assert len(read.rows("Sheet")[0]) == 2


@pytest.mark.parametrize(("n_rows", "said"), [(100_000, "unpacked"), (20_000, "its cells")])
def test_a_small_workbook_of_many_rows_is_refused(n_rows, said, tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.base.limits.ALLOWANCE", 2**20)
    rows = "<row><c><v>1</v></c></row>" * n_rows + "</sheetData>"
    path = saved(tmp_path, ["time", "n"], [DAY, 1])
    path = rewritten(path, lambda xml: xml.replace("</sheetData>", rows))
    with pytest.raises(InputError, match=said):
        read_table(path)


def test_merged_cells_that_overlap_are_refused(tmp_path):
    path = saved(tmp_path, ["time", "n"], [DAY, 1])
    areas = "</sheetData>" + "<mergeCell ref='A1:B2'/>" * 2
    path = rewritten(path, lambda xml: xml.replace("</sheetData>", areas))
    with pytest.raises(InputError, match="overlap"):
        read_table(path)


def test_a_declared_entity_is_refused(tmp_path):
    path = saved(tmp_path, ["time", "n"], [DAY, 1])
    path = rewritten(path, lambda xml: "<!DOCTYPE a [<!ENTITY b 'c'>]>" + xml)
    with pytest.raises(InputError, match="entity"):
        read_table(path)


def test_hidden_sheets_are_not_read(tmp_path):
    book = openpyxl.Workbook()
    book.active.title = "Data"
    old = book.create_sheet("Old")
    old.sheet_state = "hidden"
    for sheet, value in ((book.active, 1.0), (old, 99.0)):
        sheet.append(["time", "cell", "v"])
        for day in range(1, 9):
            sheet.append([datetime.datetime(2024, 3, day), "a", value + day])
    book.save(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx")["v"].values.ravel().tolist() == [*range(2, 10)]
    assert read(tmp_path / "a.xlsx", sheet="Old")["v"].values[0] == 100
