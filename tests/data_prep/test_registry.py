import logging
import sys
from types import SimpleNamespace

import pytest
from mentions import mentions

from data_prep import DATA_SETS
from data_prep.base.errors import InputError
from data_prep.base.registry import Registry, is_listed, is_named, listed, merged

GROUP = "stforecast.zoo"


class Animal:
    name = ""


class Zoo:
    """A package of ours in a folder, and packages of others installed beside it."""

    def __init__(self, folder, name):
        self.folder, self.package = folder, name
        (folder / name).mkdir()
        self.write("__init__", "")

    def write(self, module, text):
        (self.folder / self.package / f"{module}.py").write_text(text)

    def install(self, name, entry_points, text):
        info = self.folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entry_points}\n")
        (self.folder / f"{name}.py").write_text(text)

    def registry(self, is_entry=None, **options):
        is_entry = is_entry or is_named(Animal)
        return Registry("animal", self.package, is_entry=is_entry, group=GROUP, **options)


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "animals", SimpleNamespace(Animal=Animal))
    yield Zoo(tmp_path, "menagerie")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def define(*names):
    """The text of a module that defines animals."""
    classes = [f"class {name.title()}(Animal):\n    name = '{name}'\n" for name in names]
    return "\n".join(["from animals import Animal\n", *classes])


def mark(name):
    """The text of a module that marks one function of two."""
    head = "from data_prep.base.registry import listed"
    return f"{head}\n\n@listed\ndef {name}(): ...\n\ndef helper(): ...\n"


def test_what_modules_define_is_found_by_its_name_and_in_order(zoo):
    zoo.write("b", define("cat") + "\nclass Kitten(Cat):\n    pass\n")
    zoo.write("a", define("dog") + "\nfrom menagerie.b import Cat\n")
    registry = zoo.registry()
    assert list(registry) == ["cat", "dog"]
    assert registry["cat"].__name__ == "Cat"
    assert len(registry) == 2
    assert "Kitten" not in registry


def test_nothing_is_imported_before_it_is_asked_for(zoo):
    zoo.write("a", define("cat"))
    registry = zoo.registry()
    assert "menagerie" not in sys.modules
    assert registry.find("cat")
    assert "menagerie.a" in sys.modules


def test_another_order_may_be_asked_for(zoo):
    zoo.write("a", define("cat", "dog"))
    assert list(zoo.registry(sort_by=lambda animal: -ord(animal.name[0]))) == ["dog", "cat"]


def test_functions_are_listed_where_they_are_marked_and_modules_where_they_fit(zoo):
    text = "from data_prep.base.registry import listed\n\n"
    text += "@listed\ndef big_cat(): ...\n\ndef dog(): ...\n"
    zoo.write("the_cage", text)
    assert list(zoo.registry(is_listed)) == ["big-cat"]
    modules = zoo.registry(lambda thing: getattr(thing, "__name__", "") == "menagerie.the_cage")
    assert list(modules) == ["the-cage"]


def test_a_mark_changes_nothing_else():
    def walk(steps):
        return 2 * steps

    assert not is_listed(walk)
    assert listed(walk) is walk
    assert is_listed(walk)
    assert walk(2) == 4


def test_an_unknown_name_is_answered_with_the_known_ones(zoo):
    zoo.write("a", define("cat", "dog"))
    with pytest.raises(InputError, match=r"'catt'; .*: cat, dog"):
        zoo.registry().find("catt")
    with pytest.raises(KeyError):
        zoo.registry()["catt"]


def test_two_of_one_name_are_refused_and_both_are_named(zoo):
    zoo.write("a", define("cat"))
    zoo.write("b", define("cat"))
    with pytest.raises(InputError, match=r"menagerie\.a and .* menagerie\.b"):
        list(zoo.registry())


def test_other_packages_add_theirs(zoo):
    zoo.write("a", define("cat"))
    zoo.install("kennel", "dog = kennel:Dog", define("dog"))
    assert list(zoo.registry()) == ["cat", "dog"]
    assert sys.modules["kennel"].Dog is zoo.registry()["dog"]


def test_another_package_may_not_take_a_name_of_ours(zoo):
    zoo.write("a", define("cat"))
    zoo.install("kennel", "cat = kennel:Cat", define("cat"))
    with pytest.raises(InputError) as refused:
        list(zoo.registry())
    assert "animal of menagerie.a" in str(refused.value)
    assert mentions(str(refused.value), "kennel:Cat", "package kennel 1.0")


@pytest.mark.parametrize(
    ("value", "text", "reason"),
    [
        ("kennel:Dog", "import no_such_module", "ModuleNotFoundError"),
        ("kennel:Wolf", define("dog"), "AttributeError: "),
        ("kennel:Dog", "1 / 0", "ZeroDivisionError: "),
        ("kennel:Animal", define("dog"), "no animal"),
        ("kennel:bad syntax", define("dog"), "AttributeError: "),
    ],
)
def test_what_is_broken_is_named_and_stops_nothing_else(zoo, caplog, value, text, reason):
    zoo.write("a", define("cat"))
    zoo.install("kennel", f"dog = {value}", text)
    zoo.install("aquarium", "fish = aquarium:Fish", define("fish"))
    registry = zoo.registry()
    with caplog.at_level(logging.WARNING):
        assert list(registry) == ["cat", "fish"]
        assert "cat" in registry
    (record,) = caplog.records
    assert mentions(record.message, "kennel 1.0:", f"dog = {value}", f"{GROUP}")
    assert reason in record.message


def test_what_comes_later_is_found(zoo, tmp_path, monkeypatch):
    zoo.write("a", define("cat"))
    registry = zoo.registry()
    assert list(registry) == ["cat"]
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.py").write_text(define("dog"))
    menagerie = sys.modules["menagerie"]
    monkeypatch.setattr(menagerie, "__path__", [*menagerie.__path__, str(tmp_path / "more")])
    assert list(registry) == ["cat", "dog"]


def test_kinds_that_share_their_names_are_joined(zoo):
    zoo.write("a", define("cat"))
    zoo.write("b", mark("dog"))
    assert list(merged(zoo.registry(is_listed), zoo.registry())) == ["dog", "cat"]
    zoo.write("c", mark("cat"))
    with pytest.raises(InputError, match=r"two .*'cat'"):
        merged(zoo.registry(is_listed), zoo.registry())


def test_data_sets_are_modules_by_name():
    assert list(DATA_SETS) == [
        "auckland-pedestrians", "fedda-h5", "hangzhou-metro", "largest", "los-loop", "metr-la",
        "milan", "newyork-taxi", "pems-bay", "pems03", "pems04", "pems07", "pems08", "sz-taxi",
        "table", "trentino",
    ]  # fmt: skip
    assert DATA_SETS["milan"] is sys.modules["data_prep.sets.milan"]


def test_a_class_whose_options_are_no_dataclass_is_left_out_and_named(zoo, caplog):
    plain = define("cat", "dog") + "    class Options:\n        legs = 4\n"
    zoo.install("alien", "cat = alien:Cat\ndog = alien:Dog", plain)
    with caplog.at_level(logging.WARNING):
        assert list(zoo.registry()) == ["cat"]
    assert mentions(caplog.text, "dog = alien:Dog", "stforecast.zoo")
    assert "@dataclass(frozen=True)" in caplog.text


def test_a_fault_in_a_folder_of_ours_is_said_with_its_file(zoo):
    zoo.write("a", define("cat") + "    class Options:\n        legs = 4\n")
    with pytest.raises(InputError, match=r"menagerie/a.py, Cat: .*dataclass"):
        zoo.registry().find("cat")
