"""Publications of measured data in DATEX II."""

import gzip
from datetime import UTC, datetime

import pytest
from measured_files import SITE, flow, speed

from data_prep.base.errors import InputError
from data_prep.readers.formats import Part
from data_prep.readers.formats.datex2 import Datex2
from data_prep.readers.options import TableOptions
from data_prep.sets import table


@pytest.fixture
def read(tmp_path):
    """Function that reads texts as files of a folder."""

    def read(*texts):
        files = tuple(tmp_path / f"{i}.xml" for i in range(len(texts)))
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        return Datex2.read(Part("minutes", tmp_path, files=files), TableOptions(), ()).columns

    return read


@pytest.mark.parametrize(
    ("file", "site", "time", "quantity", "value"),
    [
        ("trafficspeed", "PZH01_MST_0690_00", datetime(2019, 1, 10, 13, 59), "flow", 540.0),
        ("traveltime", "RWS09_017", datetime(2019, 1, 10, 14), "travel_time", 288.403),
    ],
)
def test_real_publications(exports_dir, file, site, time, quantity, value, read):
    content = gzip.decompress((exports_dir / f"datex2-ndw-{file}.xml.gz").read_bytes())
    assert Datex2.recognises(content)
    table = read(content.decode())
    assert table.columns == ["time", "cell", quantity], "a reference value is not measured"
    assert table.rows() == [(time.replace(tzinfo=UTC), site, value)]


def test_each_index_is_a_cell_and_quantities_are_columns(read):
    values = flow(1, 60) + speed(2, 88.5) + flow(3, 120)
    table = read(
        *(SITE.format(site="A", time=f"2024-01-01T00:0{m}:00Z", values=values) for m in (0, 1))
    )
    assert table["cell"].to_list() == 2 * ["A/1", "A/2", "A/3"]
    assert table["flow"].to_list() == 2 * [60.0, None, 120.0]
    assert table["speed"].to_list() == 2 * [None, 88.5, None]


@pytest.mark.parametrize("wrong", [speed(1, -1), speed(1, 50, "<dataError>true</dataError>")])
def test_what_was_not_measured_is_missing(wrong, read):
    values = wrong + speed(2, 50, "<dataError>false</dataError>")
    table = read(SITE.format(site="A", time="2024-01-01T00:00:00+01:00", values=values))
    assert table["speed"].to_list() == [None, 50.0]


def test_rates_and_speeds_have_units(tmp_path):
    times = [f"2024-03-01T00:0{minute}:00Z" for minute in range(5)]
    for i, time in enumerate(times):
        values = flow(1, 60 * i) + speed(2, 88)
        (tmp_path / f"{i}.xml").write_text(SITE.format(site="A", time=time, values=values))
    cube = table.read(tmp_path)
    assert (cube["flow"].attrs["units"], cube["speed"].attrs["units"]) == ("veh/h", "km/h")


def test_a_publication_that_came_twice_counts_once(read):
    text = SITE.format(site="A", time="2024-01-01T00:00:00Z", values=flow(1, 60))
    assert len(read(text, text)) == 1


SITES = """<d2LogicalModel><payloadPublication><measurementSiteTable id="T">{sites}
</measurementSiteTable></payloadPublication></d2LogicalModel>"""

RECORD = """<{tag} id="{site}" version="1">
  <measurementSiteName><values><value lang="nl">A4 at {site}</value></values></measurementSiteName>
  <measurementSpecificCharacteristics index="1"><measurementSpecificCharacteristics>
    <specificLane>lane1</specificLane><specificVehicleCharacteristics>
    <lengthCharacteristic><comparisonOperator>lessThan</comparisonOperator>
    <vehicleLength>5.6</vehicleLength></lengthCharacteristic></specificVehicleCharacteristics>
  </measurementSpecificCharacteristics></measurementSpecificCharacteristics>
  <measurementSpecificCharacteristics index="2"><measurementSpecificCharacteristics>
    <specificLane>lane2</specificLane><specificVehicleCharacteristics>
    <vehicleType>anyVehicle</vehicleType></specificVehicleCharacteristics>
  </measurementSpecificCharacteristics></measurementSpecificCharacteristics>
  <measurementSiteLocation><locationForDisplay><latitude>52.5</latitude>
    <longitude>4.25</longitude></locationForDisplay></measurementSiteLocation></{tag}>"""


@pytest.mark.parametrize("tag", ["measurementSiteRecord", "measurementSite"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_table_of_sites_names_and_places_the_cells(tmp_path, tag, packed):
    (tmp_path / "minutes").mkdir()
    for minute in range(3):
        values = flow(1, 60 + minute) + flow(2, 120)
        text = SITE.format(site="A", time=f"2024-01-01T00:0{minute}:00Z", values=values)
        (tmp_path / "minutes" / f"{minute}.xml").write_text(text)
    text = SITES.format(sites="".join(RECORD.format(tag=tag, site=site) for site in "AB")).encode()
    sites = tmp_path / f"sites.xml{'.gz' * packed}"
    sites.write_bytes(gzip.compress(text) if packed else text)
    cube = table.read(tmp_path / "minutes", sites=str(sites))
    assert cube["cell"].to_numpy().tolist() == ["A/1", "A/2"]
    assert (cube["lon"].to_numpy().tolist(), cube["lat"].to_numpy().tolist()) == (
        [4.25] * 2,
        [52.5] * 2,
    )
    assert cube["lane"].to_numpy().tolist() == ["lane1", "lane2"]
    assert cube["vehicles"].to_numpy().tolist() == ["lessThan 5.6 m", "anyVehicle"]
    assert cube["name"].to_numpy().tolist() == ["A4 at A"] * 2


@pytest.mark.parametrize("text", ["<d2LogicalModel/>", "<d2LogicalModel>"])
def test_what_holds_no_values_is_refused(text, read):
    with pytest.raises(InputError):
        read(text)
