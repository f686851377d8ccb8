"""Numbers as exports write them: with decimal commas, separators of thousands and units."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np
import polars as pl

from data_prep.base.errors import InputError, Words, counted, some
from data_prep.readers.columns import (
    CALENDAR,
    LATITUDES,
    LONGITUDES,
    WITH_COMMA,
    named,
    without_calendar,
)
from data_prep.readers.options import Decimal, TableOptions
from data_prep.readers.origin import FIRST, Origin, StepLog
from data_prep.readers.table import Table
from data_prep.readers.units import (
    UNIT_AFTER,
    canonical,
    common_unit,
    factors,
    unit_of,
    units_after,
)

_POINT = (
    r"^\s*[+-]?([1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]*)?"
    r"|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)\s*$"
)
# Not 1,234, whose comma may separate thousands: another number of digits, a 0, or both marks.
_SURELY = (
    r"^\s*[+-]?([0-9]*,([0-9]{1,2}|[0-9]{4,})|0+,[0-9]+|[0-9]{4,},[0-9]+"
    r"|[1-9][0-9]{0,2}(\.[0-9]{3})+,[0-9]+|[0-9]+,[0-9]+[eE][+-]?[0-9]+)\s*$"
)
QUANTITIES = frozenset({
    "kpi", "kpiname", "kpiid", "metric", "metricname", "measure", "measurename", "measurement",
    "indicator", "indicatorname", "parameter", "parametername", "quantity", "variable", "kennzahl",
    "messgroesse", "pmcounter", "pmcountername",
})  # fmt: skip
"""Usual names of a column that names the quantity of each row."""

FIELD = "_field"
"""InfluxDB's name of that column; a field may as well be a place."""

UNIT_COLUMNS = frozenset({"unit", "units", "uom", "einheit", "unite", "unidad", "unita"})
"""Usual names of a column of units."""

_SURELY_POINT = (
    r"^\s*[+-]?([1-9][0-9]{0,2}(,[0-9]{3})+\.[0-9]+|[0-9]*\.([0-9]{1,2}|[0-9]{4,})"
    r"|(0*|[0-9]{4,})\.[0-9]+|[0-9]*\.[0-9]+[eE][+-]?[0-9]+)\s*$"
)

_WHOLE = r"^\s*[+-]?[1-9][0-9]{0,2}\s*$"

MANY_GROUPED = 50
"""Numbers with three decimals each, among whole ones, that are thousands: by chance, some would
have fewer."""

MIN_WHOLE = 0.01
"""Least share of whole numbers among those whose points may separate thousands."""

log = StepLog("numbers")


def may_be_grouped(column: pl.Series, min_whole: float = 0.0) -> bool:
    """Return whether points in numbers that were read may separate thousands.

    A share `min_whole` must be whole numbers.

    >>> may_be_grouped(pl.Series([1.234, 17.0])), may_be_grouped(pl.Series([1.234, 17.25]), 0.01)
    (True, False)
    >>> may_be_grouped(pl.Series([1.234, 0.017])), may_be_grouped(pl.Series([1.2345, 17.0]))
    (False, False)
    """
    if not column.dtype.is_float():
        return False
    for values in (column.head(MANY_GROUPED).to_numpy(), column.to_numpy()):
        sizes = np.abs(values[np.isfinite(values) & (values != 0)])
        whole = sizes == np.floor(sizes)
        parts = sizes[~whole]
        if (parts < 1).any() or (sizes >= 1000).any():
            return False
        if (np.abs(parts * 1000 - np.rint(parts * 1000)) > 1e-6).any():
            return False
    return bool(len(parts)) and bool(whole.mean() >= min_whole)


def _is_share(table: Table, name: str) -> bool:
    """Return whether a column is in %, by its name or its texts."""
    units = units_after(table[name])
    return unit_of(name) == "%" or (units is not None and "%" in map(canonical, _written(units)))


def has_fractions(table: Table) -> bool:
    """Return whether numbers of a text have decimals."""
    floats = (c for c in table.columns.iter_columns() if table.origin.texts and c.dtype.is_float())
    return any((c % 1 > 0).any() for c in floats)


def _decide_mark(texts: pl.Series, mark: str) -> Decimal | None:
    """Return the decimal mark if commas, or points, in texts leave no doubt, else None.

    They separate thousands if they stand before three digits each, in many numbers beside whole
    ones, or twice in a number.
    """
    other: Decimal = "point" if mark == "," else "comma"
    marked = texts.filter(texts.str.contains(mark, literal=True))
    if not len(marked) or not texts.str.contains(WITH_COMMA).all():
        return "point"
    if mark == "," and texts.str.contains(_SURELY).any():
        return "comma"
    if marked.str.contains(rf"[{mark}].*[{mark}]").any():
        return other
    whole = texts.str.contains(_WHOLE).sum()
    return other if whole >= MIN_WHOLE * len(texts) and len(marked) >= MANY_GROUPED else None


def apply(table: Table, mark: Decimal, options: TableOptions) -> Table:
    """Return a table with numbers in one unit for each column, and a column for each quantity.

    A column that numbers ten rows or more is left out, unless it is the only one of numbers.
    """
    keys = options.keys
    given = ", as given" if options.decimal != "auto" else ""
    log.note(table.origin, "as they are" if table.typed else f"decimal {mark}s{given}")
    texts = [name for name, _ in _texts_of_numbers(table.columns, keys)]
    table = to_numbers(table, mark, keys)
    if options.decimal == "comma" and not any(table[c].dtype.is_numeric() for c in texts):
        unread = Words("{decimal} is not used", decimal=mark)
        log.warning(table.origin, "no number is a text here; ", unread)
    table = use_unit_column(spread_quantities(table, keys), keys)
    values = _values(table, table.times, keys)
    counts = pl.int_range(1, len(table) + 1, eager=True)
    counted_up = [c for c in values if len(table) >= 10 and table[c].eq_missing(counts).all()]
    if not counted_up or len(counted_up) == len(values) or options.values is not None:
        return table
    again = Words("pass {values} to choose columns")
    log.info(table.origin, f"not taken as values, as it numbers the rows: {counted_up[0]}; ", again)
    return table.without(counted_up)


def decide_decimal(
    tables: Sequence[Table], decimal: Decimal, keys: Container[str], remedy: str = ""
) -> Decimal:
    """Return the decimal mark of tables that were read with points, unless it is known.

    It is `"comma"` if the texts allow nothing else, else `"point"`; commas and points that may
    separate thousands as well are refused, with a `remedy` where there is no option. Columns of
    `keys`, of times and ids, hold no values.
    """
    if decimal != "auto":
        return decimal
    unclear: dict[Decimal, tuple[Origin, str]] = {}
    sure = beside = False
    first: Decimal | None = FIRST.get({}).get("decimal")
    for table in tables:
        for name, texts in _texts_of_numbers(table.columns, keys):
            mark = "," if texts.str.contains(",", literal=True).any() else "."
            found = _decide_mark(texts, mark)
            if found is None and _is_share(table, name):  # Of thousands of % there are none.
                found, sure = ("comma", sure) if mark == "," else ("point", True)
            held = texts.filter(texts.str.contains(mark, literal=True)).head(1).to_list()
            holds = f"column {name!r} holds {held[0]!r}" if held else ""
            sure |= mark == "," and found == "point" and texts.str.contains(_POINT).all()
            sure |= texts.str.contains(_SURELY_POINT).any()
            if found == "comma":
                what = "decimal commas" if mark == "," else "points separate thousands"
                other = "they separate thousands" if mark == "," else "they are decimal"
                again = Words("pass {decimal:point} if {}", other)
                log.info(table.origin, f"{what}, such as {held[0]!r} in column {name!r}; ", again)
                return "comma"
            if mark == "." and found is None and named([name], LONGITUDES | LATITUDES):
                sure = True
            elif found is None:
                own = texts.str.contains(_WHOLE).sum() >= MIN_WHOLE * len(texts)
                rarely = table.typed or table.separator == ","
                if mark == "," or own or first == "comma" or not rarely:
                    unclear.setdefault("comma" if mark == "," else "point", (table.origin, holds))
                    beside |= own
        if table.origin.texts and not table.as_text:  # Else its numbers are texts.
            floats = (c for c in table.columns.iter_columns() if c.dtype.is_float())
            sure |= any((c % 1 > 0).any() and not may_be_grouped(c) for c in floats)
    if not unclear:
        return "point"
    if first and not sure:
        return first
    (origin, _), *_ = unclear.values()
    shown = "; ".join(holds for _, holds in unclear.values())
    if sure:
        if "comma" in unclear:
            log.info(origin, f"{shown}: commas separate thousands, as others have points")
        return "point"
    others = [t for t in tables if t.separator != ","]
    dotted = (t[c] for t in others for c in t.names if c in keys and t[c].dtype == pl.String)
    date = r"^\s*\d{1,2}\.\d{1,2}\.\d{2,4}\b"  # Of countries that write decimal commas.
    if (beside or "comma" in unclear) and any(c.str.contains(date).any() for c in dotted):
        log.info(origin, f"{shown}: a decimal comma, as dates have points")
        return "comma"
    one: Decimal = "comma" if "comma" in unclear else "point"
    both = Words(
        "pass {decimal:comma} if it is decimal, {decimal:point} for thousands"
        if one == "comma"
        else "pass {decimal:point} if it is decimal, {decimal:comma} for thousands"
    )
    what = f"{shown}: a decimal {one} or a separator of thousands? "
    raise InputError(f"{origin.name}: {what}", remedy or both)


def _texts_of_numbers(table: pl.DataFrame, keys: Container[str]) -> Iterator[tuple[str, pl.Series]]:
    """Yield the columns of text that are no keys, without empty fields and spaces in numbers."""
    for column in table.iter_columns():
        if column.dtype == pl.String and column.name not in keys:
            yield column.name, plain_numbers(column.drop_nulls())


def plain_numbers(texts: pl.Series) -> pl.Series:
    """Return texts without spaces or apostrophes between thousands, and without units after them.

    Units are kept if they cannot be converted to one.

    >>> plain_numbers(pl.Series(["1 234,5", "12'000", "7", "2 b"])).to_list()
    ['1234,5', '12000', '7', '2 b']
    >>> plain_numbers(pl.Series(["7 %", "8 %"])).to_list()
    ['7', '8']
    """
    units = units_after(texts)
    if units is not None and common_unit(_written(units)) is not None:
        texts = texts.str.replace(UNIT_AFTER, "$1")
    if not texts.str.contains(r"^\s*[+-]?[0-9][0-9.,]*[\s'’][0-9]{3}").any():
        return texts
    grouped = texts.str.contains(r"^\s*[+-]?[0-9]{1,3}([\s'’][0-9]{3})+([.,][0-9]+)?\s*$")
    return texts.zip_with(~grouped, texts.str.replace_all(r"[\s'’]", ""))


def _written(units: pl.Series) -> list[str]:
    """Return the distinct units of a column."""
    return sorted(unit for unit in units.unique().drop_nulls().to_list() if unit)


def to_numbers(table: Table, decimal: str, keys: Container[str]) -> Table:
    """Convert columns of text that hold numbers only, with separators of thousands or without.

    Units that stand after the numbers are noted in the table.

    >>> texts = {"a": ["1.234,5", None], "b": ["x", "1,5"], "c": ["1 GB", "2 MB"]}
    >>> table = to_numbers(Table(pl.DataFrame(texts)), "comma", [])
    >>> table["a"].to_list(), table["c"].to_list(), table.units
    ([1234.5, None], [1000000000.0, 2000000.0], {'c': 'B'})
    """
    pattern, thousands = (WITH_COMMA, ".") if decimal == "comma" else (_POINT, ",")
    converted, grouped, found = [], [], dict(table.units)
    for name, texts in _texts_of_numbers(table.columns, keys):
        if len(texts) and texts.str.contains(pattern).all():
            if decimal == "comma" and texts.str.contains(".", literal=True).any():
                grouped.append(name)
            plain = plain_numbers(table[name]).str.strip_chars()
            plain = plain.str.replace_all(thousands, "", literal=True)
            column = plain.str.replace(",", ".", literal=True).cast(pl.Float64)
            if (units := units_after(table[name])) is not None:
                column, found[name] = _in_one_unit(column, units, table.origin)
            converted.append(column)
        elif len(texts) and decimal == "comma" and texts.str.contains(_POINT).all():
            other = texts.filter(~texts.str.contains(pattern))[0]
            raise InputError(
                f"{table.origin.name}: column {name!r} holds {other!r}, which has a decimal "
                "point, expected decimal commas as in the rest of the table; write all numbers "
                "with the same decimal mark"
            )
        elif (units := units_after(table[name])) is not None:
            written = _written(units)
            if len(written) > 1 and all(map(canonical, written)):  # Else they are words.
                raise InputError(
                    f"{table.origin.name}: column {name!r} is in {some(written, 6)}, which do not "
                    "convert to one unit; write a column for each quantity"
                )
    if grouped and any(
        t.str.contains(",").any() for _, t in _texts_of_numbers(table.columns, keys)
    ):
        log.warning(
            table.origin,
            "points are read as separators of thousands in columns "
            f"{some(map(repr, grouped))}, since the table has decimal commas",
        )
    return table.with_columns(*converted).with_(units=found)


def _in_one_unit(column: pl.Series, units: pl.Series, origin: Origin) -> tuple[pl.Series, str]:
    """Return numbers that are written in several units in one, and this unit."""
    written = _written(units)
    to = common_unit(written) or ""
    if len({canonical(unit) for unit in written}) > 1:
        log.warning(
            origin,
            f"column {column.name!r} is in {some(written, 6)}; converted to {to} (1 kB = "
            "1000 B, 1 KiB = 1024 B)",
        )
        column = column * pl.Series(factors(units, to))
    return column, canonical(to)


def spread_quantities(table: Table, keys: Container[str]) -> Table:
    """Give each quantity a column if every row names the quantity of its number.

    >>> rows = {"time": [1, 1], "KPI": ["load", "users"], "v": [7.0, 2.0], "unit": ["GB", "1"]}
    >>> table = spread_quantities(Table(pl.DataFrame(rows), times=("time",)), [])
    >>> table.columns.to_dict(as_series=False), table.units
    ({'time': [1], 'load': [7.0], 'users': [2.0]}, {'load': 'GB'})
    """
    names = [FIELD] if FIELD in table else named(table.names, QUANTITIES)
    found = [c for c in names if table[c].dtype == pl.String]
    values = _values(table, [*table.times, *found], keys)
    if len(found) != 1 or len(values) != 1 or table[found[0]].null_count():
        return table
    units = named(table.names, UNIT_COLUMNS)
    fixed = units and table.n_unique(found[0], units[0]) == table[found[0]].n_unique()
    other = {*found, *values, *(units if fixed else ()), *named(table.names, CALENDAR)}
    index = [c for c in table.names if c not in other or c in table.times]
    if not set(table.times) <= set(index) or table.repeats(*index, *found):
        return table
    known = dict(table.columns.select(found[0], units[0]).unique().iter_rows()) if fixed else {}
    known = {quantity: canonical(str(unit)) for quantity, unit in known.items()}
    quantities = table[found[0]].unique(maintain_order=True)
    log.info(table.origin, f"column {found[0]!r} names {some(quantities, 6)}")
    wide = table.columns.pivot(found, index=index, values=values[0])
    rows = table.columns.with_row_index().select(pl.col("index").first().over(index)).unique()
    known = {quantity: unit for quantity, unit in known.items() if unit not in ("", "1")}
    return table.with_(
        columns=wide,
        origin=table.origin.of_rows(np.sort(rows["index"].to_numpy())),
        units={**table.units, **known},
    )


def _values(table: Table, times: Container[str], keys: Container[str]) -> list[str]:
    """Return the columns of numbers that are no times, ids or places, nor of the calendar."""
    own = [c for c in table.names if c not in times and c not in keys]
    return without_calendar(c for c in own if table[c].dtype.is_numeric())


def use_unit_column(table: Table, keys: Container[str]) -> Table:
    """Give the numbers of a table one unit if a column names the unit of each row.

    >>> rows = {"cell": ["a", "b"], "load": [1.0, 2.0], "Unit": ["GB", "MB"]}
    >>> table = use_unit_column(Table(pl.DataFrame(rows)), ["cell"])
    >>> table.columns.to_dict(as_series=False), table.units
    ({'cell': ['a', 'b'], 'load': [1000000000.0, 2000000.0]}, {'load': 'B'})
    """
    found = [c for c in named(table.names, UNIT_COLUMNS) if table[c].dtype == pl.String]
    units = table[found[0]].str.strip_chars() if len(found) == 1 else pl.Series(dtype=pl.String)
    written = _written(units)
    if not written or not all(map(canonical, written)):
        return table
    values = _values(table, (), keys)
    if len({canonical(unit) for unit in written}) == 1:
        known = {c: canonical(written[0]) for c in values} if len(values) == 1 else {}
        return table.without(found if known else ()).with_(units={**table.units, **known})
    if len(values) != 1 or common_unit(written) is None or units.null_count():
        raise InputError(
            f"{table.origin.name}: column {found[0]!r} changes between {some(written, 6)}, beside "
            f"{counted(len(values), 'column')} of numbers ({some(values, 4)}); write one unit, or "
            "a column for each quantity"
        )
    column, unit = _in_one_unit(table[values[0]].cast(pl.Float64), units, table.origin)
    units_known = {**table.units, values[0]: unit}
    return table.with_columns(column).without(found).with_(units=units_known)
