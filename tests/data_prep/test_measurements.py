"""Measurements of network elements in XML and JSON; the truths of real files are those of lxml."""

import gzip
import io
import json
from datetime import UTC, datetime, timedelta, timezone

import polars as pl
import pytest
from measured_files import XML

from data_prep.base.errors import InputError
from data_prep.readers.formats import Part
from data_prep.readers.formats.measurements import MeasurementsXml, walk_event, walk_xml
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import collecting_notes

OMES = """<?xml version="1.0"?>
<OMeS version="2.3" xmlns="pm/cnf_lte_nsn.1.0.xsd">
  <PMSetup startTime="2024-03-01T00:15:00.000+02:00:00" interval="15">
    {objects}
  </PMSetup>
</OMeS>"""

OMES_OBJECT = """<PMMOResult>
  <MO><DN>PLMN-PLMN/MRBTS-12/LNBTS-12/LNCEL-{cell}</DN></MO>
  <NE-LNCEL_1.0 measurementType="LTE_Cell_Load">
    <M8001C0>{value}</M8001C0><M8001C1>7</M8001C1>
  </NE-LNCEL_1.0>
</PMMOResult>"""

MDC = """<?xml version="1.0"?>
<!DOCTYPE mdc SYSTEM "MeasDataCollection.dtd">
<mdc><mfh><cbt>20240301000000Z</cbt></mfh><md>
  <neid><neun>ERBS1</neun><nedn>SubNetwork=S,MeContext=ERBS1</nedn></neid>
  <mi><mts>20240301001500Z</mts><gp>900</gp><mt>pmA</mt><mt>pmB</mt>
    <mv><moid>ManagedElement=1,EUtranCellFDD=F1</moid><r>5</r><r>6</r></mv>
    <mv><moid>ManagedElement=1,EUtranCellFDD=F2</moid><r>8</r><r>NIL</r><sf>TRUE</sf></mv>
  </mi></md></mdc>"""


@pytest.fixture
def read(tmp_path):
    """Function that reads texts as files of a folder, and returns a table and what was said."""

    def read(*texts, object_class=None, wanted=()):
        files = tuple(tmp_path / f"{i}.xml" for i in range(len(texts)))
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        options = TableOptions(object_class=object_class, values=",".join(wanted) or None)
        with collecting_notes() as notes:
            table = MeasurementsXml.read(Part("pm", tmp_path, files=files), options, ())
        return table.columns, [note.text for note in notes]

    return read


@pytest.mark.parametrize(
    ("file", "n_values", "total", "n_lists", "n_suspect", "begin"),
    [
        ("ericsson-style.xml.gz", 2667, 14_784_310_454, 409, 2, datetime(2022, 4, 18, 19)),
        ("5g-r-p.xml", 28, 13_287, 1, 2, datetime(2000, 3, 1, 11, 59, 30)),
        ("measresults.xml", 12, 7_404, 0, 0, datetime(2001, 10, 2, 12, 13, 20)),
    ],
)
def test_real_files_hold_what_lxml_finds(
    file, n_values, total, n_lists, n_suspect, begin, exports_dir
):
    path, found = exports_dir / f"pm-32435-{file}", []
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    assert MeasurementsXml.recognises(content[:2000])
    walk_xml(io.BytesIO(content), found.append)
    texts = [v for each in found for v in each.values if v is not None]
    lists = [v for v in texts if "," in v]
    numbers = [float(v) for v in texts if v.strip().lstrip("-").replace(".", "").isdigit()]
    assert (len(texts), sum(numbers), len(lists)) == (n_values, total, n_lists)
    assert sum(each.suspect for each in found) == n_suspect
    assert found[0].begin.astimezone(UTC).replace(tzinfo=None) == begin


def test_the_event_holds_what_the_file_holds_but_has_no_usable_time(exports_dir):
    event = json.loads(gzip.decompress((exports_dir / "pm-ves.json.gz").read_bytes()))
    with pytest.raises(ValueError, match="151983"):
        walk_event(event, print)
    event["event"]["commonEventHeader"]["lastEpochMicrosec"] = 1_650_309_300_000_000
    path, of_event, of_file = exports_dir / "pm-32435-ericsson-style.xml.gz", [], []
    walk_event(event, of_event.append)
    walk_xml(io.BytesIO(gzip.decompress(path.read_bytes())), of_file.append)
    assert [(m.name, m.counters, m.suspect) for m in of_event] == [
        (m.name, m.counters, m.suspect) for m in of_file
    ]
    assert sum(v is not None for m in of_event for v in m.values) == 2667
    assert of_event[0].begin == of_file[0].begin


def test_objects_of_one_class_become_a_table(exports_dir, read):
    content = gzip.decompress((exports_dir / "pm-32435-ericsson-style.xml.gz").read_bytes())
    with pytest.raises(InputError, match="NRCellDU") as e:
        read(content.decode())
    assert e.value.names("object_class")
    table, notices = read(content.decode(), object_class="NRCellDU")
    assert table["cell"].to_list() == [
        f"ManagedElement=nodedntest,GNBDUFunction=1,NRCellDU={n}" for n in (1, 2, 31, 32)
    ]
    assert "lists" in notices[-1]


def test_nokia_counts_from_the_begin_of_a_step(read):
    table, _ = read(OMES.format(objects=OMES_OBJECT.format(cell=3, value=12)))
    assert table.row(0, named=True) == {
        "time": datetime(2024, 2, 29, 22, 15, tzinfo=UTC),
        "cell": "PLMN-PLMN/MRBTS-12/LNBTS-12/LNCEL-3",
        "M8001C0": 12.0,
        "M8001C1": 7.0,
    }
    objects = "".join(OMES_OBJECT.format(cell=c, value=c) for c in range(3))
    table, _ = read(OMES.format(objects=objects), object_class="LNCEL")
    assert table["M8001C0"].to_list() == [0.0, 1.0, 2.0]


def test_values_by_position_and_a_time_of_the_end(read):
    table, notices = read(MDC)
    assert table["time"].to_list() == 2 * [datetime(2024, 3, 1, tzinfo=UTC)]
    assert table["cell"][0] == "MeContext=ERBS1,ManagedElement=1,EUtranCellFDD=F1"
    assert table.select("pmA", "pmB").rows() == [(5.0, 6.0), (None, None)]
    assert "1 step" in notices[0], "a suspect object is missing"


def test_lists_are_read_by_index(read):
    text = XML.format(end="2024-03-01T01:00:00+01:00", value="2.5")
    table, notices = read(text)
    assert (table.columns, table["load"].to_list()) == (["time", "cell", "load"], [2.5])
    assert "bins" in notices[0]
    table, notices = read(text, wanted=["bins[2]", "bins[7]", "load"])
    assert (table.columns[2:], table.row(0)[2:]) == (["load", "bins[2]"], (2.5, 4.0))
    assert notices == ["left out, as they hold lists or no numbers: bins[7]"]
    zone = timezone(timedelta(hours=1))
    assert table["time"][0] == datetime(2024, 3, 1, 0, 45, tzinfo=zone)


def test_a_file_that_came_twice_counts_once_and_another_value_is_refused(read):
    text = XML.format(end="2024-03-01T01:00:00Z", value="2.5")
    later = XML.format(end="2024-03-01T01:15:00Z", value="3")
    table, _ = read(later, text, text)
    assert table["load"].to_list() == [2.5, 3.0]
    with pytest.raises(InputError, match=r"E1,NRCellDU=1 at 2024-03-01 00:45"):
        read(text, text.replace("2.5", "9"))


def test_blocks_of_an_object_are_joined_and_their_common_counters_must_agree(read):
    block = '<measInfo>{period}{types}<measValue measObjLdn="NRCellDU=1">{values}</measValue>'
    first = XML.format(end="2024-03-01T01:00:00Z", value="2.5")
    period = first[first.index("<granPeriod") : first.index("<measType")]
    types = '<measType p="1">load</measType><measType p="2">calls</measType>'
    further = block.format(period=period, types=types, values='<r p="1">{}</r><r p="2">7</r>')
    both = first.replace("</measData>", f"{further}</measInfo></measData>")
    table, _ = read(both.format("2.5"))
    assert table.select("load", "calls").rows() == [(2.5, 7.0)]
    with pytest.raises(InputError, match="different values"):
        read(both.format("9"))


def test_steps_of_several_lengths_are_refused(read):
    text = XML.format(end="2024-03-01T01:00:00Z", value="1")
    with pytest.raises(InputError, match="300 s, 900 s"):
        read(text, text.replace("PT15M", "PT5M"))


def test_an_unknown_class_is_refused_with_those_that_are_there(read):
    with pytest.raises(InputError, match="NRCellDU"):
        read(XML.format(end="2024-03-01T01:00:00Z", value="1"), object_class="Cell")


LAUGHS = '<!DOCTYPE m [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><measCollecFile>&b;</measCollecFile>'


@pytest.mark.attack("a hostile file")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, "entity"),
        (LAUGHS.replace('"ha"', 'SYSTEM "file:///etc/hostname"'), "entity"),
        ("<measCollecFile>" + "<a>" * 100, "nested"),
        ("<measCollecFile><measData>", "not valid XML"),
        ("<measCollecFile/>", "no objects"),
        (XML.format(end="soon", value=1), "soon"),
        (XML.format(end="2024-03-01T01:00:00Z", value=1).replace("PT15M", "PX"), "PX"),
        (XML.replace("<granPeriod", "<gran").format(end="", value=1), "granularity period"),
    ],
)
def test_what_is_no_measurement_is_refused(text, said, read):
    with pytest.raises(InputError, match=said):
        read(text)


def test_what_is_no_event_is_refused():
    with pytest.raises(ValueError, match="VES"):
        walk_event({"event": {}}, print)


@pytest.mark.repeats
def test_memory_does_not_grow_with_a_file():
    """Of a long file only the values are kept, eight bytes each."""
    import tracemalloc

    value = '<measValue measObjLdn="C={}"><r p="3">{}</r><r p="9">1</r></measValue>'
    head, _ = XML.format(end="2024-03-01T01:00:00Z", value=1).split("<measValue", 1)
    body = "".join(value.format(i % 10, i % 10) for i in range(20_000))
    file = io.BytesIO((head + body + "</measInfo></measData></measCollecFile>").encode())
    n = 0

    def count(_):
        nonlocal n
        n += 1

    tracemalloc.start()
    walk_xml(file, count)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n == 20_000
    assert most < 2**20


def test_numbers_are_floats_and_none_is_missing(read):
    texts = (XML.format(end=f"2024-03-01T0{h}:00:00Z", value=v) for h, v in ((1, "NIL"), (2, 3)))
    table, _ = read(*texts, wanted=["load", "bins[0]"])
    assert table["load"].to_list() == [None, 3.0]
    assert table["bins[0]"].to_list() == [1.0, 1.0]
    assert table.schema["time"] == pl.Datetime("us", "UTC")
