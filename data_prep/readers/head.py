"""Find where the table of an export begins: its encoding, separator, titles, names and units.

The first row with a time and numbers is the first of the data; the row above it holds the names,
unless it holds units, or the lower of two rows of names.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from data_prep.base.errors import InputError, Words, some
from data_prep.readers.columns import looks_like_values
from data_prep.readers.origin import StepLog
from data_prep.readers.units import HALF_WIDTH, unit_of
from data_prep.readers.written_times import TIME_LIKE

SEPARATORS = ",;\t|"
SAMPLE = 2**17
"""Bytes at a file's beginning that show how it is written."""

LINES = 200
"""Lines of them to look at."""

MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "NIL", "n/a", "None", "#N/A", "-", "--",
           "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "No data", "no data", "n.a.", "N.A.",
           "n.d.", "k.A.", ".", "s/d", "missing", "Missing"]  # fmt: skip
"""What stands for a missing value."""

log = StepLog("head")


def find_encoding(start: bytes, name: str) -> str:
    """Return how a text is encoded, by its beginning; what is not Unicode is logged.

    >>> find_encoding("time;größe".encode("utf-16"), "a.csv"), find_encoding(b"time", "a.csv")
    ('utf-16', 'utf-8')
    """
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if start.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    odd_0, even_0 = start[1::2].count(0), start[::2].count(0)
    if max(odd_0, even_0) > max(15, 4 * min(odd_0, even_0)):
        return "utf-16-le" if odd_0 > even_0 else "utf-16-be"
    try:
        start[: start.rfind(b"\n") + 1].decode()
        return "utf-8"
    except UnicodeDecodeError:
        odd = b"\n".join(line for line in start.splitlines() if not line.isascii())[:SAMPLE]
        # In Western texts, bytes beyond ASCII stand alone between letters.
        alone = re.findall(rb"(?<![\x80-\xff])[\x80-\xff](?![\x80-\xff])", odd)
        is_latin = 2 * len(alone) > sum(byte > 127 for byte in odd)
        found = _by_characters(odd) or ("cp1252" if is_latin else "")
        if not found:
            from charset_normalizer import from_bytes  # slow to import

            known = "cp1252 gb18030 big5 shift_jis euc_kr cp1251 cp1250 cp1253"
            best = from_bytes(odd[:4096], cp_isolation=known.split()).best()
            found = "cp1252" if best is None else best.encoding
        shown = odd.splitlines()[0].decode(found, errors="replace")
        again = Words("pass {encoding} for another")
        log.info(name, f"not UTF-8, read as {found}, such as {shown!r:.60}; ", again)
        return found


USUAL = (
    "时间刻日期年月分秒周週开始结束結統计計采採集小区區站點点基地台名称稱编編号號网網元设設备備"
    "流量上下行用户戶数數率速度平均最大值总總和车車道路段口街桥橋城市县縣镇鎮村東东西南北中新一"
    "二三四五六七八九十甲乙丙丁山江河海湖广廣场場门門园園学學校院公司业業务務利连連接京沪津州杭"
    "武汉成都重庆苏深圳厦青岛安长沙福阳高雄桃竹嘉義花蓮信正忠孝板淡水內松捷時曜開終了測定観記録"
    "番局通交種合方向線県町阪神横浜川田島崎野原駅前本目国続者札幌仙古屋渋谷池袋葉奈良のりきしと"
    "をにでスセルトラフィックデータエリアユザダウンロドプビバイワァレシサノゴグブジパキコオ시간"
    "일날짜년월분초주기지국셀명번호코드하향상트래픽사용률량데이터교통속도평균최대값합계수요서울"
    "역구동로부산강남북중인천광전점차장소가자접업다운링크처원경종마포송청파홍"
)
"""Frequent characters of exports of China, Taiwan, Japan and Korea."""


def _by_characters(text: bytes) -> str:
    """Return the encoding in which most characters beyond ASCII are usual ones, else nothing.

    >>> [_by_characters("時刻,基地局".encode(code)) for code in ("cp932", "euc_jp", "big5")]
    ['cp932', 'euc_jp', 'big5']
    """
    shares = {"": 0.25}  # In a wrong encoding hardly any character is usual.
    for code in ("cp932", "euc_jp", "gb18030", "big5", "cp949"):
        # Without signs and kana of half width, which are single bytes as those of Latin letters.
        found = set(re.findall(r"[^\W\x00-\x7f｡-ﾟ]|\ufffd", text.decode(code, errors="replace")))
        n_usual = len(found & {*USUAL})
        shares[code] = n_usual / len(found) if n_usual > 1 else 0.0
    return max(shares, key=shares.__getitem__)


@dataclass(frozen=True)
class Head:
    """What stands above the data of an export.

    Args:
        before: rows above the names.
        rows: rows above the data.
        names: names of the columns.
        units: units of columns by name, from a row of their own.
        levels: upper and lower name of the columns that have both.
        timed: whether a row of data was recognised by its time.
        labels: what a row such as `Site: Elm St` names, by its label.
    """

    before: int
    rows: int
    names: list[str]
    units: dict[str, str] = field(default_factory=dict)
    levels: dict[str, tuple[str, str]] = field(default_factory=dict)
    timed: bool = True
    labels: dict[str, str] = field(default_factory=dict)


def find_separator(lines: Sequence[str]) -> str:
    """Return the separator that makes most lines rows of data, else most lines equally long.

    >>> find_separator(["time;a", "2024-01-01;1,5", "2024-01-02;2,5"])
    ';'
    """

    def score(separator: str) -> tuple[int, int, int]:
        rows = [row for row in csv.reader(lines, delimiter=separator) if any(row)]
        width, count = usual_width(rows)
        n_data = sum(is_data(row, width) for row in rows)
        return n_data if width > 1 else 0, count if width > 1 else 0, width

    return max(SEPARATORS, key=score)


def usual_width(rows: Sequence[Sequence[object]]) -> tuple[int, int]:
    """Return the most frequent number of fields above one, the larger of two, and its count."""
    widths = Counter(len(row) for row in rows)
    wide = {width: n for width, n in widths.items() if width > 1} or widths or {0: 0}
    return max(wide.items(), key=lambda item: (item[1], item[0]))


def is_data(row: Sequence[str], width: int) -> bool:
    """Return whether a row may be one of data: it has a time, and a number or nothing else."""
    if len(row) != width or not any(re.match(TIME_LIKE, field) for field in row):
        return False
    others = [f for f in row if f.strip() not in MISSING and not re.match(TIME_LIKE, f)]
    numbers = (re.search(r"\d", f) and not re.search(r"[a-zA-Z]{4}", f) for f in others)
    return not others or any(numbers)


def _is_like(row: Sequence[str], data: Sequence[str]) -> bool:
    """Return whether a row has a time where a row of data has one, and more fields."""
    at = [i for i, field in enumerate(data) if re.match(TIME_LIKE, field)]
    timed = len(row) >= len(data) and bool(at) and all(re.match(TIME_LIKE, row[i]) for i in at)
    return timed and sum(map(bool, row)) > len(at)


def find_head(rows: Sequence[Sequence[str]], name: str, unit: str) -> Head:
    """Return what stands above the data in the first rows of a table."""
    width, _ = usual_width(rows)
    data = [i for i, row in enumerate(rows) if is_data(row, width)]
    alone = []  # Titles, as no data follow.
    for i in data:
        if sum(map(bool, rows[i])) == 1:
            following = next((row for row in rows[i + 1 :] if any(f.strip() for f in row)), [])
            if not is_data(following, width):
                alone.append(i)
    first = next((i for i in data if i not in alone), next(iter(data), None))
    while first and _is_like(rows[first - 1], rows[first]):  # It has no value.
        first -= 1
    across = next((i for i, row in enumerate(rows[:20]) if times_across(row)), None)
    if across is not None:
        return Head(across, across + 1, list(rows[across]))
    if not first:
        begin = next((i for i, row in enumerate(rows) if any(row)), 0)
        if first is None and _names_follow(rows[begin : begin + 2]):
            begin += 1
        names = list(rows[begin]) if rows else []
        return Head(begin, begin + 1, names, timed=first is not None)
    at = first - 1
    while at > 0 and not any(field.strip() for field in rows[at]):
        at -= 1
    lower = [field.strip() for field in rows[at]]
    if at > 0 and _are_units(lower) and len(rows[at - 1]) == width:
        at -= 1
        names = [field.strip() for field in rows[at]]
        units = {n: _unit(u) for n, u in zip(names, lower, strict=True)}
        head = Head(at, first, names, {n: u for n, u in units.items() if u})
    elif at > 0 and len(lower) == width and _is_upper(rows[at - 1], lower):
        head = _two_rows(rows[at - 1], lower, at - 1, first)
    else:
        head = Head(at, first, lower)
    titles = [" ".join(filter(None, row)) for row in rows[: head.before] if any(row)]
    label = r"[#\s]*([^:=]{2,40})[:=]\s*(\S.{0,60})"
    labelled = filter(None, (re.match(label, title) for title in titles))
    head = replace(head, labels={m[1].strip(): m[2].strip() for m in labelled})
    if titles:
        log.info(
            name,
            f"the first {head.before} {unit}s are titles and not read: "
            f"{some([f'{title.strip():.40}' for title in titles], 3)}",
        )
    return head


def _names_follow(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the second row has a name for each column, and the first, a title, lacks some.

    >>> _names_follow([["Sum of Volume", "", "Site", ""], ["Month", "Hour", "A", "B"]])
    True
    >>> _names_follow([["a", "b", ""], ["x", "y", "z"]]), _names_follow([["a", ""], ["1", "2"]])
    (False, False)
    """
    if len(rows) < 2 or len(rows[0]) != len(rows[1]):
        return False
    title, names = ([field.strip() for field in row] for row in rows)
    texts = all(re.search(r"[^\W\d_]", name) for name in names)
    return texts and len(set(names)) == len(names) and 2 * sum(map(bool, title)) <= len(title)


def _are_units(fields: Sequence[str]) -> bool:
    """Return whether a row holds units, in brackets or bare, or None, and nothing else."""
    filled = [field for field in fields if field and field.lower() != "none"]
    dates = [f for f in filled if re.fullmatch(r"(?i)[ymdhis:/. -]{6,}", f)]
    known = [f for f in filled if _unit(f)]
    return bool(known) and all(f in known or f in dates or f in ("-", "#") for f in filled)


def _unit(field: str) -> str:
    """Return the unit that a field holds, bare or in brackets; empty if it holds another text."""
    bare = field.translate(HALF_WIDTH).strip("()[] ")
    return "" if set("()[]") & set(bare) else unit_of(f"({bare})")


def _is_upper(upper: Sequence[str], lower: Sequence[str]) -> bool:
    """Return whether the row above the names completes them: those repeat, or are empty."""
    if len(upper) != len(lower) or sum(map(bool, upper)) < 2 or _are_units(lower):
        return False
    repeat = any(n > 1 for n in Counter(filter(None, lower)).values())
    return repeat or any(up.strip() and not low for up, low in zip(upper, lower, strict=True))


def _two_rows(upper: Sequence[str], lower: Sequence[str], before: int, rows: int) -> Head:
    """Return the names of two rows; an upper name holds until the next one."""
    names, levels, group = [], {}, ""
    for up, low in zip(upper, lower, strict=True):
        up = up.strip()
        group = up or group
        paired = bool(low and group) and low != up
        name = f"{group} {low}" if paired else low or up
        names.append(name)
        if paired:
            levels[name] = (group, low)
    return Head(before, rows, names, levels=levels)


UNNAMED = "\N{NO-BREAK SPACE}column "
"""Begin of the names of columns without one; the first may be empty, as pandas writes an index."""


def times_across(names: Sequence[str]) -> list[str]:
    """Return the names that are times, if there are several, the first names cells, none a value.

    >>> times_across(["cell", "2024-01-01", "2024-01-02", "2024-01-03"])[1:]
    ['2024-01-02', '2024-01-03']
    >>> times_across(["", "2024-01-01", "2024-02-01", "2024-01-03", "41.71"])
    []
    """
    found = [name for name in names if re.match(TIME_LIKE, name)]
    others = [name for name in names if name not in found]
    values = any(re.fullmatch(r"\s*-?\d+(\.\d+)?\s*", name) for name in others)
    return found if len(found) > 2 and names[0] not in found and not values else []


def without_empty(table: pl.DataFrame, n_named: int) -> pl.DataFrame:
    """Leave out columns without a name and without a value, as of a separator at the line's end."""
    unnamed = [n for n in table.columns[1:n_named] if n.startswith(UNNAMED)]
    return table.drop([n for n in unnamed if table[n].null_count() == len(table)])


def check_names(names: Sequence[str], before: int, file: str, unit: str) -> list[str]:
    """Return the columns' names, further empty ones numbered; refuse values and repeated names."""
    place = f"{file}, {unit} {before + 1}"
    log.note(file, f"names of columns in {unit} {before + 1}: {some(names, 6)}")
    if looks_like_values(names) and not times_across(names):
        raise InputError(
            f"{place}: {', '.join(map(repr, names[:4]))} are values, expected the columns' names; ",
            Words("pass {no_header} to number the columns from 1, or add names", no_header=True),
        )
    repeated = [name for name, count in Counter(names).items() if count > 1 and name]
    if repeated or not names:
        found = f"column {repeated[0]!r} more than once" if repeated else "nothing"
        raise InputError(f"{place}: {found}, expected column names; write one for each")
    return [name if name or not i else f"{UNNAMED}{i + 1}" for i, name in enumerate(names)]
