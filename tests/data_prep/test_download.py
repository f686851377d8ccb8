"""Downloads from a small server on loopback that can be told to misbehave."""

import errno
import gzip
import hashlib
import io
import json
import logging
import re
import socket
import stat
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.base.files import file_lock
from data_prep.download import Archive, Dataverse, File, fetch, http
from data_prep.download import listing as archive
from data_prep.download.fetch import download

BODY = bytes(range(256)) * 4096  # 1 MiB
DAY = "sms-call-internet-mi-2013-11-01.txt"


@dataclass
class Site:
    """What the server holds, how it behaves, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    base: str = ""
    ranges: bool = True
    etag: str | None = '"v1"'
    status: dict[str, int] = field(default_factory=dict)
    failures: list[int] = field(default_factory=list)  # statuses of the next answers
    cuts: list[int] = field(default_factory=list)  # the next answers end after so many bytes
    content_type: str = "application/octet-stream"
    framing: str = "length"  # how an answer's end is told: length, chunked or close
    retry_after: str | None = None
    coding: str | None = None
    moved_to: str | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # (path, Range)
    encodings: set[str | None] = field(default_factory=set)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        site, wanted = self.site, self.headers["Range"]
        site.asked.append((self.path, wanted))
        site.encodings.add(self.headers["Accept-Encoding"])
        self.close_connection = True
        if site.failures:
            return self.answer(site.failures.pop(0), b"")
        if site.moved_to and f"{site.base}{self.path}" != site.moved_to:
            return self.answer(302, b"")
        if self.path in site.status:
            return self.answer(site.status[self.path], site.files.get(self.path, b""))
        if self.path not in site.files:
            return self.answer(404, b'{"status": "ERROR", "message": "Not\\n found here."}')
        self.send_body(site.files[self.path], wanted)

    def send_body(self, body: bytes, wanted: str | None) -> None:
        site = self.site
        same = self.headers["If-Range"] in (None, site.etag)
        if not (wanted and site.ranges and same):
            return self.answer(200, body)
        start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start >= len(body):
            return self.answer(416, b"", f"bytes */{len(body)}")
        self.answer(206, body[start:], f"bytes {start}-{len(body) - 1}/{len(body)}")

    def answer(self, status: int, body: bytes, span: str | None = None) -> None:
        site = self.site
        self.send_response(status)
        self.send_header("Content-Type", site.content_type)
        self.send_header("Connection", "close")  # else a redirect would reuse a closed connection
        if site.framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        elif site.framing == "length":
            self.send_header("Content-Length", str(len(body)))
        if site.retry_after and status >= 400:
            self.send_header("Retry-After", site.retry_after)
        if site.moved_to and status == 302:
            self.send_header("Location", site.moved_to)
        if site.coding:
            self.send_header("Content-Encoding", site.coding)
        if span:
            self.send_header("Content-Range", span)
        if site.etag and status in (200, 206):
            self.send_header("ETag", site.etag)
        self.end_headers()
        self.wfile.write(body[: site.cuts.pop(0)] if site.cuts and body else body)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(http, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "*")
    handler = type("SiteHandler", (Handler,), {"site": Site()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up
    handler.site.base = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield handler.site
    server.shutdown()
    server.server_close()
    thread.join()


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def one(site: Site, body: bytes = BODY, checksum: str | None = sha256(BODY)) -> tuple[File]:
    site.files["/data.bin"] = body
    return (File(f"{site.base}/data.bin", "data.bin", checksum),)


def listing(*records: dict) -> bytes:
    return json.dumps({"status": "OK", "data": {"latestVersion": {"files": records}}}).encode()


def record(number: int, name: str, body: bytes, **more: object) -> dict:
    return {
        "label": name,
        "restricted": False,
        "dataFile": {
            "id": number,
            "filename": name,
            "filesize": len(body),
            "md5": md5(body),
            "checksum": {"type": "MD5", "value": md5(body)},
        },
    } | more


def dataverse(site: Site, *records: dict) -> tuple[Dataverse]:
    path = "/api/datasets/:persistentId/?persistentId=doi:10.7910/DVN/TEST"
    site.files[path] = listing(*records)
    return (Dataverse("doi:10.7910/DVN/TEST", site.base),)


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as z:
        for name, body in members.items():
            z.writestr(name, body)
    return buffer.getvalue()


def served(site: Site, body: bytes, **options: object) -> tuple[Archive]:
    site.files["/s/download"] = body
    return (Archive(f"{site.base}/s/download", sha256(body), **options),)  # type: ignore[arg-type]


def error(*args: object, **options: object) -> str:
    """The one line that `download` fails with."""
    with pytest.raises(InputError) as caught:
        download(*args, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def ranges(site: Site) -> list[str | None]:
    return [wanted for _, wanted in site.asked]


def test_a_file_is_brought_whole_and_nothing_else_is_left(site: Site, tmp_path: Path) -> None:
    paths = download(one(site), tmp_path / "new" / "folder")
    assert paths == [tmp_path / "new" / "folder" / "data.bin"]
    assert paths[0].read_bytes() == BODY
    assert list(paths[0].parent.iterdir()) == paths


def test_chunked_answer_without_length(site: Site, tmp_path: Path) -> None:
    site.framing = "chunked"
    assert download(one(site), tmp_path)[0].read_bytes() == BODY


def test_chunked_answer_cut_short_is_noticed(site: Site, tmp_path: Path) -> None:
    site.framing, site.cuts = "chunked", [1000] * 9
    assert "in a row" in error(one(site, checksum=None), tmp_path)
    assert not (tmp_path / "data.bin").exists()


def test_answer_of_untold_length_is_held_to_the_listing(site: Site, tmp_path: Path) -> None:
    sources = dataverse(site, record(11, DAY, BODY))
    site.files["/api/access/datafile/11"] = BODY
    site.framing, site.cuts = "close", [10**6, 1000]
    assert download(sources, tmp_path)[0].read_bytes() == BODY
    assert ranges(site) == [None, None, "bytes=1000-"]


def test_the_bytes_themselves_are_asked_for(site: Site, tmp_path: Path) -> None:
    download(one(site), tmp_path)
    assert site.encodings == {"identity"}


def test_empty_file(site: Site, tmp_path: Path) -> None:
    assert download(one(site, b"", sha256(b"")), tmp_path)[0].read_bytes() == b""


def test_progress_bars_are_drawn(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download(one(site), tmp_path / "a")
    assert capsys.readouterr().err == ""
    download(one(site), tmp_path / "b", progress=True)
    assert "data.bin" in capsys.readouterr().err


def test_dropped_connections_are_resumed_with_range(site: Site, tmp_path: Path) -> None:
    site.cuts = [1000, 5000]
    assert download(one(site), tmp_path)[0].read_bytes() == BODY
    assert ranges(site) == [None, "bytes=1000-", "bytes=6000-"]


def test_many_drops_are_fine_while_bytes_arrive(site: Site, tmp_path: Path) -> None:
    site.cuts = [1000] * (3 * http.ATTEMPTS)
    assert download(one(site), tmp_path)[0].read_bytes() == BODY


def test_attempts_are_bounded_and_the_next_run_continues(site: Site, tmp_path: Path) -> None:
    site.cuts = [1000] + [0] * http.ATTEMPTS
    message = error(one(site), tmp_path)
    assert "byte 1000" in message
    assert "run again" in message
    assert len(site.asked) == http.ATTEMPTS
    assert (tmp_path / "data.bin.part").read_bytes() == BODY[:1000]
    assert not (tmp_path / "data.bin").exists()
    site.cuts.clear()
    site.asked.clear()
    assert download(one(site), tmp_path)[0].read_bytes() == BODY
    assert ranges(site) == ["bytes=1000-"]
    assert [p.name for p in tmp_path.iterdir()] == ["data.bin"]


def test_server_without_range_starts_again(site: Site, tmp_path: Path) -> None:
    site.ranges, site.cuts = False, [1000]
    assert download(one(site), tmp_path)[0].read_bytes() == BODY
    assert ranges(site) == [None, "bytes=1000-"]


def test_server_without_range_that_always_drops_is_given_up(site: Site, tmp_path: Path) -> None:
    site.ranges, site.cuts = False, [1000] * 50
    assert "in a row" in error(one(site), tmp_path)
    assert len(site.asked) == http.ATTEMPTS


def test_changed_etag_starts_again_instead_of_mixing_two_versions(
    site: Site, tmp_path: Path
) -> None:
    site.cuts = [1000] + [0] * http.ATTEMPTS
    error(one(site, checksum=None), tmp_path)
    site.cuts.clear()
    new = BODY[::-1]
    site.etag = '"v2"'
    assert download(one(site, new, None), tmp_path)[0].read_bytes() == new


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_etag_and_checksum_nothing_is_resumed(
    site: Site, tmp_path: Path, etag: str | None
) -> None:
    site.etag, site.cuts = etag, [1000]
    assert download(one(site, checksum=None), tmp_path)[0].read_bytes() == BODY
    assert ranges(site) == [None, None]


def test_a_piece_of_another_version_is_dropped_after_the_checksum(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "data.bin.part").write_bytes(b"x" * 1000)
    assert download(one(site), tmp_path)[0].read_bytes() == BODY
    assert ranges(site) == ["bytes=1000-", None]


def test_416_on_a_complete_piece_verifies_it(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(BODY)
    assert download(one(site), tmp_path)[0].read_bytes() == BODY
    assert ranges(site) == [f"bytes={len(BODY)}-"]


@pytest.mark.parametrize("checksum", [sha256(BODY), None])
def test_416_on_a_piece_that_is_too_long_starts_again(
    site: Site, tmp_path: Path, checksum: str | None
) -> None:
    (tmp_path / "data.bin.part").write_bytes(BODY + b"more")
    (tmp_path / "data.bin.part.etag").write_text('"v1"')
    assert download(one(site, checksum=checksum), tmp_path)[0].read_bytes() == BODY
    assert ranges(site) == [f"bytes={len(BODY) + 4}-", None]
    assert {p.name for p in tmp_path.iterdir()} - {"SHA256SUMS"} == {"data.bin"}


def test_a_complete_piece_of_known_size_is_not_asked_for(site: Site, tmp_path: Path) -> None:
    (tmp_path / f"{DAY}.part").write_bytes(BODY)
    assert download(dataverse(site, record(11, DAY, BODY)), tmp_path)[0].read_bytes() == BODY
    assert len(site.asked) == 1  # the listing only


def test_wrong_checksum_is_refused_and_not_kept(site: Site, tmp_path: Path) -> None:
    message = error(one(site, b"other"), tmp_path)
    assert sha256(BODY)[7:] in message
    assert sha256(b"other")[7:] in message
    assert list(tmp_path.iterdir()) == []


def test_unknown_checksum_is_logged(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        download(one(site, checksum=None), tmp_path)
    assert sha256(BODY) in caplog.text


def test_a_file_that_is_there_and_right_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(BODY)
    assert download(one(site), tmp_path) == [tmp_path / "data.bin"]
    assert site.asked == []


def test_two_downloads_do_not_write_to_one_file(site: Site, tmp_path: Path) -> None:
    with file_lock(tmp_path / "data.bin.lock", tmp_path / "data.bin"):
        assert "data.bin: process " in error(one(site), tmp_path)
        assert site.asked == []
    download(one(site), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]


def test_a_file_that_another_download_has_just_brought_is_kept(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def late(path: Path, place: Path) -> Iterator[None]:
        place.write_bytes(BODY)
        yield

    monkeypatch.setattr(fetch, "file_lock", late)
    assert download(one(site), tmp_path) == [tmp_path / "data.bin"]
    assert site.asked == []


def test_a_file_that_is_there_and_wrong_is_never_overwritten(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"mine")
    message = error(one(site), tmp_path)
    assert "move it" in message
    assert str(tmp_path / "data.bin") in message
    assert (tmp_path / "data.bin").read_bytes() == b"mine"


def test_passing_server_errors_are_retried(site: Site, tmp_path: Path) -> None:
    site.failures = [503, 429, 500]
    assert download(one(site), tmp_path)[0].read_bytes() == BODY


def test_the_server_says_how_long_to_wait(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(http.time, "sleep", pauses.append)
    site.failures, site.retry_after = [429], "7"
    download(one(site), tmp_path / "a")
    site.failures, site.retry_after = [429, 503], "86400"
    download(one(site), tmp_path / "b")
    site.failures, site.retry_after = [503, 503], "Fri, 01 Nov 2013 00:00:00 GMT"
    monkeypatch.setattr(http, "PAUSE", 0.5)
    download(one(site), tmp_path / "c")
    assert pauses == [7, 60, 60, 0.5, 1.0]


def test_lasting_server_errors_are_given_up(site: Site, tmp_path: Path) -> None:
    site.failures = [503] * 50
    assert mentions(error(one(site), tmp_path), "HTTP 503", "5 times")


def test_missing_file_says_so_with_the_servers_words(site: Site, tmp_path: Path) -> None:
    sources = one(site)
    site.files.clear()
    message = error(sources, tmp_path)
    assert mentions(message, "HTTP 404", "Not found here.")
    assert "with source" in message
    assert len(site.asked) == 1


@pytest.mark.parametrize("status", [400, 401, 403])
def test_refusal_names_terms_of_use_and_guestbook(site: Site, tmp_path: Path, status: int) -> None:
    sources = one(site)
    site.status["/data.bin"] = status
    assert "or guestbook" in error(sources, tmp_path)


def test_a_web_page_is_not_taken_for_the_file(site: Site, tmp_path: Path) -> None:
    site.content_type = "text/html; charset=utf-8"
    assert mentions(error(one(site, checksum=None), tmp_path), "web page", "data.bin")
    assert list(tmp_path.iterdir()) == []


def test_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    assert "no connection" in error((File(f"http://127.0.0.1:{port}/a", "a"),), tmp_path)


def test_silent_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAUSE", 0.0)
    monkeypatch.setattr(http, "TIMEOUT", (0.1, 0.02))
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.create_server(("127.0.0.1", 0)) as s:
        url = f"http://127.0.0.1:{s.getsockname()[1]}/a"
        assert "no answer" in error((File(url, "a"),), tmp_path)


def test_unknown_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "host" in error((File("http://nowhere/a", "a"),), tmp_path)


@pytest.mark.parametrize("url", ["ftp://host/a", "host/a", "http://"])
def test_not_an_address(tmp_path: Path, url: str) -> None:
    message = error((File(url, "a"),), tmp_path)
    assert message.startswith(f"{url}: ")
    assert "address" in message


def test_full_disk(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, progress: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sources = one(site)
    monkeypatch.setattr(http, "_receive", full)
    message = error(sources, tmp_path)
    assert "(No space" in message
    assert str(tmp_path / "data.bin") in message


def test_too_little_space_is_known_before_the_first_byte(site: Site, tmp_path: Path) -> None:
    big = record(7, "big.txt", b"")
    big["dataFile"]["filesize"] = 10**18
    assert "1000000000.0 GB are needed" in error(dataverse(site, big), tmp_path)
    assert len(site.asked) == 1


def test_out_is_a_file(site: Site, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    assert str(tmp_path / "f") in error(one(site), tmp_path / "f")


@pytest.mark.parametrize("checksum", ["abc", "md6:abc", "md5:XYZ"])
def test_malformed_checksum(tmp_path: Path, checksum: str) -> None:
    assert "algorithm:hexdigest" in error((File("http://h/a", "a", checksum),), tmp_path)


def test_no_sources(tmp_path: Path) -> None:
    assert "official files" in error((), tmp_path)


def test_dataverse_lists_and_serves_its_files(site: Site, tmp_path: Path) -> None:
    sha1 = record(12, "grid.geojson", b"{}")
    sha1["dataFile"]["checksum"] = {"type": "SHA-1", "value": hashlib.sha1(b"{}").hexdigest()}
    del sha1["dataFile"]["md5"]
    sources = dataverse(site, record(11, DAY, BODY), sha1)
    site.files |= {"/api/access/datafile/11": BODY, "/api/access/datafile/12": b"{}"}
    paths = download(sources, tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in paths] == [DAY, "grid.geojson"]
    assert paths[0].read_bytes() == BODY
    site.asked.clear()
    assert download(sources, tmp_path) == paths
    assert len(site.asked) == 1  # the listing only


def test_dataverse_table_is_fetched_as_it_was_deposited(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = record(5, "a.tab", b"a\t1\n")
    table["dataFile"] |= {"originalFileName": "a.csv", "originalFileSize": 4}
    site.files |= {"/api/access/datafile/5?format=original": b"a,1\n"}
    paths = download(dataverse(site, table), tmp_path)
    assert paths == [tmp_path / "a.csv"]
    assert paths[0].read_bytes() == b"a,1\n"
    assert sha256(b"a,1\n") in caplog.text
    paths[0].write_bytes(b"a,1")
    assert "3 bytes, expected 4" in error(dataverse(site, table), tmp_path)


def test_dataverse_folders_keep_equal_names_apart(site: Site, tmp_path: Path) -> None:
    sources = dataverse(
        site,
        record(1, "a.txt", b"one", directoryLabel="x"),
        record(2, "a.txt", b"two", directoryLabel="y/z"),
    )
    site.files |= {"/api/access/datafile/1": b"one", "/api/access/datafile/2": b"two"}
    assert [p.read_bytes() for p in download(sources, tmp_path)] == [b"one", b"two"]
    assert (tmp_path / "y" / "z" / "a.txt").read_bytes() == b"two"


def test_equal_names_are_refused(site: Site, tmp_path: Path) -> None:
    sources = dataverse(site, record(1, "a.txt", b"one"), record(2, "a.txt", b"two"))
    assert "'a.txt' 2 times" in error(sources, tmp_path)


def test_only_chooses(site: Site, tmp_path: Path) -> None:
    records = [record(i, f"mi-{i}.txt", b"%d" % i) for i in (1, 2)]
    site.files |= {f"/api/access/datafile/{i}": b"%d" % i for i in (1, 2)}
    sources = dataverse(site, *records)
    assert [p.name for p in download(sources, tmp_path, only="*-2.txt")] == ["mi-2.txt"]
    message = error(sources, tmp_path, only="tn*")
    assert mentions(message, "2 files", "'tn*'")
    assert "mi-1.txt, mi-2.txt" in message
    assert "no files" in error(dataverse(site), tmp_path)


def test_truncated_file_of_a_mirror_is_refused_by_size(site: Site, tmp_path: Path) -> None:
    sources = dataverse(site, record(11, DAY, BODY))
    site.files["/api/access/datafile/11"] = BODY[:-1]
    message = error(sources, tmp_path)
    assert mentions(message, f"{len(BODY) - 1} bytes", f"{len(BODY)}")


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b'{"data": {}}', b'{"data": null}', listing({"dataFile": {"id": 1}})]
)
def test_not_a_listing(site: Site, tmp_path: Path, body: bytes) -> None:
    sources = dataverse(site)
    site.files[next(iter(site.files))] = body
    assert "Dataverse" in error(sources, tmp_path)


@pytest.mark.parametrize(
    "name", ["../a", "/etc/a", "x/../../a", "..\\a", "C:\\a", "C:a", "\\\\host\\a", "a\0", ".", ""]
)
def test_no_name_leaves_the_folder(site: Site, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    sources = dataverse(site, record(1, name, b"a"))
    site.files["/api/access/datafile/1"] = b"a"
    assert "refused" in error(sources, out)
    assert "refused" in error((File(f"{site.base}/a", name),), out)
    assert not out.exists() or list(out.iterdir()) == []


def test_source_replaces_the_address(site: Site, tmp_path: Path) -> None:
    (official,) = dataverse(site, record(11, DAY, BODY))
    site.files |= {"/api/access/datafile/11": BODY, "/mirror/grid.json": b"{}"}
    elsewhere = Dataverse(official.doi, "http://127.0.0.1:1")
    assert download((elsewhere,), tmp_path, source=site.base)[0].read_bytes() == BODY
    grid = (File("http://127.0.0.1:1/a/b", "grid.json", sha256(b"{}")),)
    for i, source in enumerate((f"{site.base}/mirror/", f"{site.base}/mirror/grid.json")):
        assert download(grid, tmp_path / str(i), source=source)[0].read_bytes() == b"{}"


def test_local_mirror_is_verified_by_the_official_listing(site: Site, tmp_path: Path) -> None:
    mirror, out = tmp_path / "mirror", tmp_path / "out"
    mirror.mkdir()
    sources = dataverse(site, record(11, DAY, BODY))
    assert "such file" in error(sources, out, source=str(mirror))
    (mirror / DAY).write_bytes(BODY[:-1] + b"x")
    assert "as published" in error(sources, out, source=str(mirror))
    (mirror / DAY).write_bytes(BODY)
    assert download(sources, out, source=str(mirror))[0].read_bytes() == BODY
    assert {path for path, _ in site.asked} == {next(iter(site.files))}


def test_local_mirror_with_a_saved_listing_needs_no_network(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / DAY).write_bytes(BODY)
    (mirror / "TEST.json").write_bytes(listing(record(11, DAY, BODY)))
    sources = (Dataverse("doi:10.7910/DVN/TEST", "http://127.0.0.1:1"),)
    assert download(sources, tmp_path / "out", source=str(mirror))[0].read_bytes() == BODY


def test_local_mirror_without_a_listing_and_network_says_what_is_missing(
    site: Site, tmp_path: Path
) -> None:
    message = error((Dataverse("doi:10.7910/DVN/TEST", site.base),), tmp_path, source=str(tmp_path))
    assert mentions(message, f"{tmp_path / 'TEST.json'}:", "official")
    assert "HTTP 404" in message


def test_local_file_as_source(tmp_path: Path) -> None:
    body = zipped(a=b"A")
    (tmp_path / "mine.zip").write_bytes(body)
    sources = (Archive("http://127.0.0.1:1/s/download", sha256(body)),)
    paths = download(sources, tmp_path / "out", source=str(tmp_path / "mine.zip"))
    assert paths[0].read_bytes() == b"A"
    assert "such folder" in error(sources, tmp_path, source=str(tmp_path / "none"))


def test_archive_is_unpacked_and_kept(site: Site, tmp_path: Path) -> None:
    sources = served(site, zipped(**{"a.csv": b"1", "sub/b.csv": b"2", "c.txt": b"3"}))
    paths = download(sources, tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in paths] == ["a.csv", "sub/b.csv", "c.txt"]
    assert [p.read_bytes() for p in paths] == [b"1", b"2", b"3"]
    assert (tmp_path / "download.zip").is_file()
    site.asked.clear()
    assert download(sources, tmp_path, only="*.csv") == paths[:2]
    assert site.asked == []
    assert "'*.h5'" in error(sources, tmp_path, only="*.h5")


def test_archive_members(site: Site, tmp_path: Path) -> None:
    body = zipped(**{"a.csv": b"1", "../evil": b"2"})
    assert download(served(site, body, members=("a.csv",)), tmp_path) == [tmp_path / "a.csv"]
    message = error(served(site, body, members=("b.csv",)), tmp_path)
    assert mentions(message, "'b.csv'", "../evil, a.csv")


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..\\evil"])
def test_archive_cannot_write_elsewhere(site: Site, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    assert "refused" in error(served(site, zipped(**{"good": b"1", name: b"2"})), out)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["download.zip", "out"]


def test_archive_with_a_link_is_refused(site: Site, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as z:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        z.writestr(link, "/etc/passwd")
    assert "'link' is a link" in error(served(site, buffer.getvalue()), tmp_path)
    assert not (tmp_path / "link").exists()


def test_archive_that_unpacks_to_too_much_is_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED", 1000)
    assert "1001 bytes" in error(served(site, zipped(a=b"0" * 1001)), tmp_path)
    assert not (tmp_path / "a").exists()


def test_archive_does_not_overwrite(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"mine")
    assert "move it" in error(served(site, zipped(a=b"1234")), tmp_path)
    assert (tmp_path / "a").read_bytes() == b"mine"


def test_damaged_archive(site: Site, tmp_path: Path) -> None:
    assert "valid zip" in error(served(site, b"not a zip"), tmp_path)
    body = zipped(a=bytes(range(256)))
    spoilt = re.sub(re.escape(body[40:44]), b"\0\0\0\0", body, count=1)
    other = tmp_path / "other"
    assert "valid zip" in error(served(site, spoilt), other)
    assert not (other / "a").exists()


def test_an_unpublished_checksum_is_recorded_and_checked_afterwards(site, tmp_path, caplog):
    files = one(site, checksum=None)
    with caplog.at_level(logging.WARNING):
        (path,) = download(files, tmp_path)
    sums = tmp_path / "SHA256SUMS"
    assert sums.read_text() == f"{sha256(BODY).removeprefix('sha256:')}  data.bin\n"
    assert "recorded in SHA256SUMS: sha256" in caplog.text
    caplog.clear()
    download(files, tmp_path)
    assert caplog.text == ""
    path.write_bytes(b"spoilt" + BODY[6:])
    message = error(files, tmp_path)
    assert "exists but" in message
    assert "recorded in SHA256SUMS" in message


def test_a_replaced_file_is_refused_until_its_record_is_removed(site, tmp_path):
    (path,) = download(one(site, checksum=None), tmp_path)
    path.unlink()
    site.etag = '"v2"'
    other = one(site, BODY[::-1], None)
    assert "the publisher" in error(other, tmp_path)
    assert not path.exists()
    (tmp_path / "SHA256SUMS").write_text("")
    assert download(other, tmp_path)[0].read_bytes() == BODY[::-1]


def test_a_damaged_archive_is_not_recorded(site, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as z:
        z.writestr("a.csv", "a")
    archive = Archive(f"{site.base}/a.zip")
    site.files["/a.zip"] = packed.getvalue()[:-10]
    assert "valid zip" in error((archive,), tmp_path)
    site.files["/a.zip"] = packed.getvalue()
    assert [p.name for p in download((archive,), tmp_path)] == ["a.csv"]


def test_an_unreadable_record_is_refused(site, tmp_path):
    (tmp_path / "SHA256SUMS").write_bytes(b"\xff\xfe")
    assert mentions(error(one(site, checksum=None), tmp_path), "SHA256SUMS", "checksums")


def test_archives_may_be_named_so_that_they_share_a_folder(site, tmp_path):
    for name in ("a", "b"):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as z:
            z.writestr(f"{name}.csv", name)
        site.files[f"/{name}/download"] = packed.getvalue()
        archive = Archive(f"{site.base}/{name}/download", name=f"{name}.zip")
        assert [p.name for p in download((archive,), tmp_path)] == [f"{name}.csv"]
    assert {p.name for p in tmp_path.iterdir()} == {
        "a.zip", "a.csv", "b.zip", "b.csv", "SHA256SUMS",
    }  # fmt: skip


@pytest.mark.attack("hostile download")
def test_a_file_that_was_compressed_for_the_way_is_not_stored_so(
    site: Site, tmp_path: Path
) -> None:
    site.coding = "gzip"
    assert "(Content-Encoding: gzip)" in error(one(site, gzip.compress(BODY), None), tmp_path)
    assert not (tmp_path / "data.bin").exists()


@pytest.mark.attack("hostile download")
def test_a_public_address_cannot_redirect_into_this_machine(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = one(site)
    site.moved_to = site.base.replace("127.0.0.1", "localhost") + "/data.bin"
    private = http.is_private
    monkeypatch.setattr(http, "is_private", lambda url: "127.0.0.1" not in url and private(url))
    assert mentions(error(sources, tmp_path), f"to {site.moved_to},", "machine")
    assert len(site.asked) == 1


@pytest.mark.attack("hostile download")
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "10.1.2.3", "192.168.1.1", "169.254.169.254", "2130706433",
     "0.0.0.0", "[::ffff:127.0.0.1]"],
)  # fmt: skip
def test_addresses_of_this_machine_and_its_network_are_private(host: str) -> None:
    assert http.is_private(f"http://{host}:8080/data.bin")
    assert not http.is_private("https://8.8.8.8/data.bin")


def test_within_a_network_redirects_are_followed(site: Site, tmp_path: Path) -> None:
    site.files["/data.bin"], site.moved_to = BODY, f"{site.base}/data.bin"
    sources = (File(f"{site.base}/old.bin", "data.bin", sha256(BODY)),)
    assert download(sources, tmp_path)[0].read_bytes() == BODY
