import datetime
import gzip
import hashlib
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.sets.telecom_italia import cdr
from data_prep.sets.telecom_italia.cdr import SERVICES, read_day
from data_prep.sets.telecom_italia.raw_day import RawDay

START = 1383260400000  # 2013-11-01 00:00 Europe/Rome, the first interval as published
DATE = datetime.date(2013, 11, 1)


def row(cell, interval, country=39, *values):
    fields = [cell, START + interval * 600_000, country, *values, *[""] * (5 - len(values))]
    return "\t".join(map(str, fields)) + "\n"


def whole_day(cell=1, *values):
    return [row(cell, interval, 39, *values) for interval in range(144)]


@pytest.fixture
def day(tmp_path):
    """Writes lines to a file and describes it: cells 1 to 9 may occur."""

    def write(lines, date=DATE, cells=range(1, 10), name="day.txt"):
        path = tmp_path / name
        text = "".join(lines).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return RawDay(path, date, np.array(cells))

    return write


def values_of(sums, service):
    return sums.values[SERVICES.index(service)]


def test_countries_are_summed_also_where_they_are_not_adjacent(day):
    lines = [row(1, 0, 0, 1.5), *whole_day(2), row(1, 0, 39, 2.25), row(1, 1, 39, 4), row(1, 0, 7)]
    sums = read_day(day(lines))
    assert sums.cells.tolist() == [1, 2]
    assert values_of(sums, "sms_in")[:3].tolist() == [[3.75, 0], [4, 0], [0, 0]]


def test_empty_fields_hold_their_place_and_sms_stand_before_calls(day):
    lines = [row(1, 0, 39, 1, 2, 3, 4, 5), row(1, 1, 39, "", 2, "", "", 5), *whole_day(2)]
    sums = read_day(day(lines))
    assert {s: values_of(sums, s)[:2, 0].tolist() for s in SERVICES} == {
        "sms_in": [1, 0],
        "sms_out": [2, 2],
        "call_in": [3, 0],
        "call_out": [4, 0],
        "internet": [5, 5],
    }


def test_blanks_are_zero_and_a_cell_of_blanks_is_kept(day):
    sums = read_day(day([*whole_day(1, 7.0), *whole_day(3)]))
    assert sums.cells.tolist() == [1, 3]
    assert (values_of(sums, "sms_in") == [7, 0]).all()
    assert (sums.values[1:] == 0).all()


def test_steps_add_up_their_intervals(day):
    lines = [row(1, i, 39, "", "", "", "", i) for i in range(144)]
    hours = values_of(read_day(day(lines), per_step=6), "internet")[:, 0]
    assert hours.shape == (24,)
    assert hours[:2].tolist() == [0 + 1 + 2 + 3 + 4 + 5, 6 + 7 + 8 + 9 + 10 + 11]
    assert read_day(day(lines), per_step=144).values[4].tolist() == [[143 * 144 / 2]]


def test_a_step_without_one_of_its_intervals_is_nan(day):
    lines = [line for i, line in enumerate(whole_day(1, 1.0)) if i != 8]
    sums = read_day(day(lines), per_step=6)
    assert np.flatnonzero(~sums.recorded).tolist() == [8]
    assert np.flatnonzero(np.isnan(values_of(sums, "sms_in")[:, 0])).tolist() == [1]
    assert values_of(sums, "sms_in")[0, 0] == 6


def test_sums_equal_an_independent_reader_on_shuffled_rows(day):
    rng = np.random.default_rng(5)
    keys = [
        (c, i, k) for c in (2, 5, 9) for i in range(144) for k in (0, 33, 39) if rng.random() < 0.7
    ]
    rng.shuffle(keys)
    lines = [
        row(c, i, k, *(repr(float(v)) if v < 2 else "" for v in rng.gamma(1, 1, 5)))
        for c, i, k in keys
    ]
    raw = day(lines)
    sums = read_day(raw, per_step=6)

    frame = pd.read_csv(raw.path, sep="\t", header=None, names=["cell", "t", "country", *SERVICES])
    hour = (frame["t"] - START) // 3_600_000
    for service in SERVICES:
        expected = frame.pivot_table(service, hour, "cell", "sum", fill_value=0.0)
        np.testing.assert_allclose(values_of(sums, service), expected.to_numpy(), rtol=1e-14)


def test_block_size_does_not_matter(day, monkeypatch):
    raw = day([row(1, i, k, i + k / 7) for i in range(144) for k in (1, 39)])
    whole = read_day(raw)
    monkeypatch.setattr(cdr, "BLOCK_BYTES", 50)
    blocks = read_day(raw)
    assert (whole.values == blocks.values).all()
    assert whole.checksum == blocks.checksum


def test_checksum_is_that_of_the_file_as_published(day):
    lines = whole_day(1, 0.5)
    plain, packed = day(lines), day(lines, name="day.txt.gz")
    expected = f"sha256:{hashlib.sha256(plain.path.read_bytes()).hexdigest()}"
    assert read_day(plain).checksum == read_day(packed).checksum == expected


def test_packed_file_equals_the_plain_one(day):
    lines = whole_day(1, 0.5, 1.5)
    assert (read_day(day(lines)).values == read_day(day(lines, name="x.txt.gz")).values).all()


def test_windows_line_ends_are_read(day):
    lines = [line.replace("\n", "\r\n") for line in whole_day(1, 1, 2, 3, 4, 5)]
    assert (values_of(read_day(day(lines)), "internet") == 5).all()


def test_the_day_is_the_local_one():
    day = RawDay(Path("x"), DATE, np.array([1]))
    assert day.start_ms == START
    assert day.clock(104) == "17:20"


@pytest.mark.parametrize(
    ("date", "n"), [("2013-10-27", 150), ("2013-11-01", 144), ("2014-03-30", 138)]
)
def test_a_day_of_changing_clocks_is_longer_or_shorter(date, n):
    assert RawDay(Path("x"), datetime.date.fromisoformat(date), np.array([1])).n_intervals == n


def test_a_step_that_does_not_divide_a_short_day_is_refused(day):
    raw = day(whole_day(), date=datetime.date(2014, 3, 30))
    with pytest.raises(InputError, match=r"138 .* 12; choose a step"):
        read_day(raw, per_step=12)


FAULTS = {
    "short": ("1\t1383260400000\t39\t1.5\n", "found 4 tab-separated fields, expected 8"),
    "long": (row(1, 0).replace("\n", "\t\n"), "found 9 tab-separated fields, expected 8"),
    "blank line": ("\n", "found 1 tab-separated field, expected 8"),
    "commas": ("1,1383260400000,39,1,2,3,4,5\n", "separated by commas"),
    "white space": ("1 1383260400000 39 1.5\n", "white space between fields hides the empty ones"),
    "text": (row(1, 0, 39, "abc"), "SMS in is 'abc', expected a number"),
    "decimal comma": (row(1, 0, 39, "", "", "1,5"), "calls in is '1,5', expected a number"),
    "quoted": (row(1, 0, 39, '"1.5"'), "SMS in is '\"1.5\"', expected a number"),
    "padded": (row(1, 0, 39, "1.5 "), "SMS in is '1.5 ', expected a number"),
    "hole": (row(1, 0, 39, "\0\0"), "expected a number"),
    "not utf-8": (row(1, 0, 39, "\udcff"), "expected a number"),
    "negative": (row(1, 0, 39, "", -0.5), "SMS out is '-0.5', expected a number of at least 0"),
    "infinite": (row(1, 0, 39, "", "", "", "", "inf"), "internet is 'inf', expected a number"),
    "overflow": (row(1, 0, 39, "", "", "", "", "1e999"), "internet is '1e999', expected a number"),
    "nan": (row(1, 0, 39, "", "", "", "NaN"), "calls out is 'NaN', expected a number"),
    "no id": (row("", 0), "square id is '', expected a whole number"),
    "no country": (row(1, 0, ""), "country code is '', expected a whole number"),
    "negative country": (row(1, 0, -1), "country code is '-1', expected a whole number"),
    "huge country": (row(1, 0, 2**31), "country code is '2147483648', expected a whole number"),
    "fraction": (row("1.0", 0), "square id is '1.0', expected a whole number"),
    "unknown id": (row(10, 0), "square id 10 is not one of the 9 ids 1–9"),
    "id zero": (row(0, 0), "square id 0 is not one of the 9 ids"),
    "off grid": (row(1, 0.5).replace(".0", ""), "is not on the ten-minute grid"),
    "day before": (row(1, -1), "is 2013-10-31 23:50 local, outside 2013-11-01"),
    "day after": (row(1, 144), "is 2013-11-02 00:00 local, outside 2013-11-01"),
    "seconds": ("1\t1383260400\t39\t\t\t\t\t\n", "1383260400 is not on the ten-minute grid"),
    "carriage return": (row(1, 0, "39\r"), "country code is '39\\r', expected a whole number"),
    "byte order mark": ("\ufeff" + row(1, 0), r"square id is '\ufeff1', expected a whole number"),
    "year 45744": ("1\t1381365030600000\t39\t\t\t\t\t\n", "is no date, outside 2013-11-01"),
    "no date": ("1\t9222222222222000000\t39\t\t\t\t\t\n", "is no date, outside 2013-11-01"),
}


@pytest.mark.parametrize("block", [8 << 20, 300])
@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_line_is_named(tmp_path, monkeypatch, name, block):
    monkeypatch.setattr(cdr, "BLOCK_BYTES", block)
    bad, reason = FAULTS[name]
    path = tmp_path / "day.txt"
    path.write_bytes("".join([*whole_day(1), bad, *whole_day(2)]).encode(errors="surrogateescape"))
    with pytest.raises(InputError) as e:
        read_day(RawDay(path, DATE, np.arange(1, 10)))
    assert str(e.value).startswith(f"{path}: line 145: ")
    assert reason in str(e.value)
    assert "; " in str(e.value)
    assert "\n" not in str(e.value)


def test_ids_with_holes_are_refused_inside_the_range_too(day):
    with pytest.raises(InputError, match=r"line 145: square.* 3.* 1–4"):
        read_day(day([*whole_day(1), row(3, 0), row(4, 0)], cells=(1, 4)))


FIELDS = [
    "",
    "0",
    "1",
    "+1",
    "-1",
    "-0",
    "1\r",
    "1.5",
    "1e-5",
    ".5",
    "5.",
    "1e5",
    "nan",
    "inf",
    "x",
    " 1",
    "1 ",
    " ",
    "٣",
    "1_0",
    "0x1",
]


@pytest.mark.quick(2)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "field", [*range(4), *(pytest.param(f, marks=pytest.mark.slow) for f in range(4, 8))]
)
def test_block_and_line_rules_agree(day, field):
    for text in FIELDS:
        fields = row(1, 0, 39, 1, 2, 3, 4, 5).rstrip("\n").split("\t")
        fields[field] = text
        line = "\t".join(fields) + "\n"
        raw = day([*whole_day(2), line])
        if raw.fault(line.encode()) is None:
            assert read_day(raw).cells.tolist() == [1, 2], text
        else:
            with pytest.raises(InputError, match="line 145: "):
                read_day(raw)


@pytest.mark.quick(3)
@pytest.mark.parametrize("block", [1, 300, 8 << 20])
@pytest.mark.parametrize("n_apart", [0, 1, 50])
def test_a_row_that_stands_twice_is_refused(day, monkeypatch, n_apart, block):
    monkeypatch.setattr(cdr, "BLOCK_BYTES", block)
    between = [row(1, 5, 40 + i) for i in range(n_apart)]
    lines = [row(1, 5, 39, 1.0), *between, row(1, 5, 39, 2.0), *whole_day(2)]
    with pytest.raises(InputError) as e:
        read_day(day(lines))
    expected = (
        f"lines 1 and {n_apart + 2} are the same square 1, interval 00:50 local and country 39"
    )
    assert expected in str(e.value)


def test_unsorted_rows_without_a_repeat_are_good(day):
    lines = [*whole_day(2, 1.0), *whole_day(1, 2.0)]
    random.Random(3).shuffle(lines)
    assert (values_of(read_day(day(lines)), "sms_in") == [2, 1]).all()


def test_last_row_may_lack_its_newline_if_it_ends_the_day(day):
    lines = [*whole_day(1), *whole_day(2, 1, 1, 1, 1, 11.25)]
    lines[-1] = lines[-1].rstrip("\n")
    assert (values_of(read_day(day(lines)), "internet") == [0, 11.25]).all()


def test_a_file_cut_in_its_last_field_is_refused(day):
    text = "".join([*whole_day(1), row(2, 104, 39, 1, 1, 1, 1, 11.25)])
    with pytest.raises(InputError, match=r"line 145.*newline.* 17:20"):
        read_day(day([text[:-4]]))


def test_a_file_cut_in_an_earlier_field_is_refused(day):
    text = "".join([*whole_day(1), row(2, 143, 39, 1, 1, 1, 1, 11.25)])
    with pytest.raises(InputError, match=r"line 145: found 6 .* 8;"):
        read_day(day([text[:-9]]))


@pytest.mark.parametrize("name", ["day.txt", "day.txt.gz"])
def test_an_empty_file_is_refused(day, name):
    with pytest.raises(InputError, match="empty"):
        read_day(day([], name=name))


def test_a_zip_archive_is_refused(day):
    with pytest.raises(InputError, match=r"archive.*gzip"):
        read_day(day(["PK\x03\x04rest"]))


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b[:40] + b"\xff" * 40 + b[80:]])
def test_a_damaged_gzip_file_is_refused(day, damage):
    raw = day(whole_day(1, 1.5), name="day.txt.gz")
    raw.path.write_bytes(damage(raw.path.read_bytes()))
    with pytest.raises(InputError, match=r"day\.txt\.gz: damaged gzip"):
        read_day(raw)
