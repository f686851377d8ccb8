"""The cache of compiled kernels: what is damaged or may be another's is never loaded."""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stforecast.federated.kernels import compiler
from stforecast.federated.kernels.compiler import library

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and kernels that compile in no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "SOURCES", ("vectors.c",))
    library.cache_clear()
    yield tmp_path / "stforecast"
    library.cache_clear()


@pytest.fixture
def builds(monkeypatch):
    """Folders in which libraries were built."""
    seen = []
    build = compiler._build

    def watched(*args):
        seen.append(args[-1])
        return build(*args)

    monkeypatch.setattr(compiler, "_build", watched)
    return seen


def loaded():
    library.cache_clear()
    return library()


def test_it_is_built_once(cache, builds):
    assert loaded()
    assert loaded()
    assert builds == [cache]
    assert cache.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in cache.iterdir()] == [0o700]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "writable", "another's", "a link"])
def test_a_file_that_cannot_be_trusted_is_built_anew(cache, builds, monkeypatch, how):
    loaded()
    (path,) = cache.iterdir()
    content = path.read_bytes()
    path.unlink()
    spoilt = {"cut": content[: len(content) // 2], "flipped": content[:-1] + b"x", "empty": b""}
    # Not over the old file, which this process has in its memory.
    path.write_bytes(spoilt.get(how, content))
    path.chmod(0o722 if how == "writable" else 0o700)
    if how == "another's":
        if os.geteuid():
            pytest.skip("only root gives files away")
        os.chown(path, 12345, 12345)
    if how == "a link":
        path.symlink_to(path.rename(cache / "elsewhere"))
    opened = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: opened.append(Path(name).read_bytes()))
    loaded()
    assert builds == [cache, cache]
    assert opened == [content]
    assert not path.is_symlink()
    assert path.read_bytes() == content


@pytest.mark.parametrize("how", ["writable", "another's", "a file", "no home"])
def test_a_folder_that_cannot_be_trusted_is_left_alone(cache, builds, monkeypatch, caplog, how):
    if how == "a file":
        cache.write_text("")
    elif how == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(compiler.Path, "home", no_home)
    else:
        cache.mkdir(mode=0o700)
        cache.chmod(0o777 if how == "writable" else 0o700)
        if how == "another's":
            if os.geteuid():
                pytest.skip("only root gives files away")
            os.chown(cache, 12345, 12345)
    caplog.set_level("INFO")
    assert loaded()
    (folder,) = builds
    assert folder != cache
    assert not folder.exists()
    assert not cache.is_dir() or not any(cache.iterdir())
    assert "compiled for" in caplog.text


def no_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.repeats
def test_two_may_build_at_once(cache, monkeypatch):
    assert loaded()
    (built,) = cache.iterdir()
    given = []
    monkeypatch.setattr(compiler, "_build", lambda *args: given.append(args) or built)
    built.unlink()  # This process has it in its memory, so a cut file would end it by a signal.
    built.write_bytes(b"")
    loaded()
    monkeypatch.undo()
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: compiler._build(*given[0]), range(4)))
    assert paths == {built}
    assert list(cache.iterdir()) == [built]
    assert compiler._is_sound(built)


@pytest.mark.repeats
def test_flags_of_the_user_give_a_library_of_its_own(cache, builds, monkeypatch):
    assert loaded()
    monkeypatch.setenv("CFLAGS", "-march=x86-64-v2 -DUNUSED")
    assert loaded()
    assert loaded()
    assert builds == [cache, cache]
    monkeypatch.setenv("CFLAGS", "-no-such-flag")
    assert loaded() is None


@pytest.mark.parametrize("name", ["flags", "Features"])
def test_processors_of_other_instructions_have_libraries_of_their_own(monkeypatch, name):
    """Linux lists a processor's instructions as flags on x86, as Features on ARM."""

    def of(instructions):
        text = f"processor\t: 0\nBogoMIPS\t: 50.00\n{name}\t: {instructions}\nCPU part\t: 0xd0c\n"
        monkeypatch.setattr(Path, "read_text", lambda path: text)
        return compiler.processor_flags()

    assert of("fp asimd sve") != of("fp asimd")
    assert {"fp", "asimd"} <= set(of("fp asimd").split())
