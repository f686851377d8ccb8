"""Minute counts of Flanders and intervals of SUMO."""

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.sets.table import read
from stforecast.cli.info import describe

MIV = """<miv xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" schemaVersion="1.0.0">
<tijd_publicatie>2023-05-02T12:01:06+02:00</tijd_publicatie>{sites}</miv>"""
MEETPUNT = """<meetpunt beschrijvende_id="H222L10" unieke_id="{site}"><lve_nr>55</lve_nr>
<tijd_waarneming>2023-05-02T10:{minute:02}:00+01:00</tijd_waarneming>
<beschikbaar>1</beschikbaar><defect>{defect}</defect><geldig>0</geldig>{classes}
<rekendata><bezettingsgraad>{occupancy}</bezettingsgraad></rekendata></meetpunt>"""
MEETDATA = """<meetdata klasse_id="{kind}"><verkeersintensiteit>{flow}</verkeersintensiteit>
<voertuigsnelheid_rekenkundig>0</voertuigsnelheid_rekenkundig>
<voertuigsnelheid_harmonisch>{speed}</voertuigsnelheid_harmonisch></meetdata>"""
CONFIG = """<mivconfig><meetpunt unieke_id="29"><beschrijvende_id>H222L10</beschrijvende_id>
<Rijstrook>R10</Rijstrook><lengtegraad_EPSG_4326>4,28</lengtegraad_EPSG_4326>
<breedtegraad_EPSG_4326>51,18</breedtegraad_EPSG_4326></meetpunt></mivconfig>"""


def test_minutes_of_flanders(tmp_path):
    (tmp_path / "minutes").mkdir()
    for minute in range(5):
        classes = "".join(
            MEETDATA.format(kind=k, flow=minute * k, speed=90 + k if minute else 252)
            for k in (1, 2)
        )
        sites = "".join(
            MEETPUNT.format(site=site, minute=minute, defect=int((site, minute) == (30, 3)),
                            classes=classes, occupancy=minute) for site in (29, 30)
        )  # fmt: skip
        text = MIV.format(sites=sites)
        for name in (f"{minute}.xml", f"{minute}-again.xml"):
            (tmp_path / "minutes" / name).write_text(text)
    (tmp_path / "config.xml").write_text(CONFIG)
    cube = read(tmp_path / "minutes", sites=str(tmp_path / "config.xml"))
    assert cube["flow_2"].to_numpy()[:, 0].tolist() == [0, 2, 4, 6, 8]
    np.testing.assert_array_equal(cube["flow_2"].to_numpy()[:, 1], [0, 2, 4, np.nan, 8])
    units = {"flow_1": "veh", "speed_2": "km/h", "occupancy": "%"}
    assert {name: cube[name].attrs["units"] for name in units} == units
    np.testing.assert_array_equal(cube["speed_1"].to_numpy()[:, 0], [np.nan, 91, 91, 91, 91])
    assert cube["occupancy"].to_numpy()[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert str(cube["time"].to_numpy()[0])[:16] == "2023-05-02T09:00"
    np.testing.assert_allclose([cube["lon"][0], cube["lat"][0]], [4.28, 51.18])
    assert cube["Rijstrook"].to_numpy().tolist() == ["R10", ""]


E1 = '<interval begin="{b}.00" end="{e}.00" id="{id}" nVehContrib="{n}" flow="{f}.00" speed="{s}"/>'
EDGE = """<interval begin="{b}" end="{e}" id="dump"><edge id="{id}" entered="{n}" speed="{s}"/>
</interval>"""


@pytest.mark.parametrize(("form", "count"), [(E1, "nVehContrib"), (EDGE, "entered")])
def test_intervals_of_sumo(tmp_path, form, count):
    intervals = [
        form.format(b=300 * i, e=300 * i + 300, id=c, n=i, f=12 * i, s="-1.00" if i == 0 else 13.5)
        for i in range(6) for c in ("e1_0", "e1_1")
    ]  # fmt: skip
    path = tmp_path / "e1.xml"
    path.write_text(f"<detector>{''.join(intervals)}</detector>")
    cube = read(path, start="2024-03-01T06:00", step="5min")
    assert str(cube["time"].to_numpy()[0])[:16] == "2024-03-01T06:00"
    assert cube[count].to_numpy().tolist() == [[i, i] for i in range(6)]
    np.testing.assert_array_equal(cube["speed"].to_numpy()[:, 0], [np.nan, *5 * [13.5]])
    assert str(read(path)["time"].to_numpy()[0])[:10] == "2000-01-01"
    assert "--start and --step" in describe(path).text
    with pytest.raises(InputError, match="intervals of 300 s"):
        read(path, start="2024-03-01T06:00", step="10min")
