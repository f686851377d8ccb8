"""Tables and queries of databases."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.base.files import path_of
from data_prep.sets.table import read
from stforecast.cli.info import describe
from stforecast.cli.main import cli
from stforecast.data.cubes import open_cube


@pytest.fixture
def database(tmp_path):
    """A database with a table of counts."""
    path = tmp_path / "counts.db"
    rows = [(f"2024-03-01 {h:02}:00", c, h + 0.5, None if h == 7 else h)
            for h in range(24) for c in "ab"]  # fmt: skip
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE counts (time TEXT, site TEXT, flow REAL, users INTEGER)")
        made.executemany("INSERT INTO counts VALUES (?, ?, ?, ?)", rows)
    return path


def test_the_only_table_of_a_database_is_read(database):
    cube = read(database)
    np.testing.assert_array_equal(cube["flow"].to_numpy()[:, 0], np.arange(24) + 0.5)
    assert np.flatnonzero(np.isnan(cube["users"].to_numpy()[:, 1])).tolist() == [7]
    assert describe(database).kind == "table"


def test_a_query_of_a_database_by_its_url(database, tmp_path):
    with closing(sqlite3.connect(database)) as made, made:
        made.execute("CREATE VIEW night AS SELECT * FROM counts WHERE time < '2024-03-01 06'")
    with pytest.raises(InputError, match=r'2 tables: "counts", "night"; .*"counts"'):
        read(database)
    args = ["prepare", "table", "--raw", f"sqlite:///{database}", "--out", str(tmp_path / "o.nc")]
    cli(
        [*args, "--query", "SELECT time, site, 2 * flow AS double FROM night"],
        standalone_mode=False,
    )
    with open_cube(tmp_path / "o.nc") as cube:
        assert cube["double"].to_numpy()[:, 0].tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]


@pytest.mark.attack("a hostile query")
@pytest.mark.parametrize(
    "query",
    ["DELETE FROM counts", "ATTACH 'new.db' AS new", "SELECT 1; DROP TABLE counts", "SELECT x",
     "PRAGMA writable_schema = 1", "VACUUM INTO 'new.db'"],
)  # fmt: skip
def test_a_query_can_only_read(database, query, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = database.read_bytes()
    with pytest.raises(InputError, match=r"counts\.db"):
        read(database, query=query)
    assert database.read_bytes() == before
    assert [*tmp_path.iterdir()] == [database]


def test_columns_of_one_name_are_refused(database):
    with pytest.raises(InputError, match="one name"):
        read(database, query="SELECT time, site, flow, flow FROM counts")


def test_passwords_of_urls_are_not_repeated(capsys):
    url = "postgresql://me:secret@host/traffic"
    for refused in (lambda: path_of(url), lambda: open_cube(url),
                    lambda: cli(["info", url], standalone_mode=False)):  # fmt: skip
        with pytest.raises(InputError, match="a URL of postgresql") as e:
            refused()
        assert "secret" not in str(e.value) + "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("SELECT 1", "no database"),
        ("-- postgresql://me:secret@host/traffic", r"holds a password; .*PGPASSWORD"),
        ("-- postgresql://host/traffic?password=secret", "holds a password"),
    ],
)
def test_queries_of_postgresql_name_their_database_and_no_password(tmp_path, first, said):
    (tmp_path / "counts.sql").write_text(f"{first}\nSELECT * FROM counts")
    with pytest.raises(InputError, match=said) as e:
        read(tmp_path / "counts.sql")
    assert "secret" not in str(e.value)


@pytest.fixture(scope="module")
def server():
    """URL of a PostgreSQL that is started for the tests."""
    pytest.importorskip("adbc_driver_postgresql")
    programs = [*Path("/usr/lib/postgresql").glob("*/bin"), Path(shutil.which("initdb") or "/")]
    if not (programs[0] / "initdb").exists():
        pytest.skip("no PostgreSQL here")
    home = Path(tempfile.mkdtemp())
    owner = {"user": "postgres"} if os.geteuid() == 0 else {}  # It refuses to work for root.
    if owner:
        shutil.chown(home, "postgres")

    def call(program, *words):
        subprocess.run([programs[0] / program, *words], check=True, cwd=home, **owner,
                       stdout=subprocess.DEVNULL)  # fmt: skip

    call("initdb", "-D", home / "data", "-A", "trust", "-U", "tester")
    socket = f"-k {home} -c listen_addresses="
    call("pg_ctl", "-D", home / "data", "-o", socket, "-w", "-l", home / "log", "start")
    call("psql", "-h", home, "-U", "tester", "postgres", "-c",
         "CREATE TABLE counts AS SELECT timestamptz '2024-03-01 00:00Z' + n * interval '1 hour'"
         " AS time, c AS site, (n * 1.5)::numeric(8, 2) AS flow, n AS users"
         " FROM generate_series(0, 23) n, unnest(array['a', 'b']) c")  # fmt: skip
    yield f"postgresql:///postgres?host={home}&user=tester"
    call("pg_ctl", "-D", home / "data", "-m", "fast", "stop")
    shutil.rmtree(home)


@pytest.mark.slow
def test_a_real_postgresql_answers_and_is_not_written_to(server, tmp_path):
    path = tmp_path / "counts.sql"
    path.write_text(f"-- {server}\nSELECT * FROM counts")
    cube = read(path)
    np.testing.assert_array_equal(cube["flow"].to_numpy()[:, 0], 1.5 * np.arange(24))
    np.testing.assert_array_equal(cube["users"].to_numpy()[:, 1], np.arange(24))
    for query, said in (("DELETE FROM counts", "read-only"), ("SELECT x", "x")):
        path.write_text(f"-- {server}\n{query}")
        with pytest.raises(InputError, match=said):
            read(path)
