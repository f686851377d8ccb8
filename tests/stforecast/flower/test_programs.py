"""Flower's programs and ports."""

import pytest

from data_prep.base.errors import InputError
from stforecast.flower import supernode as programs
from stforecast.flower.supernode import find_program, free_port


def test_flower_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"flower-x .*pip"):
        find_program("flower-x")


def test_ports_are_free():
    assert 1024 < free_port() < 2**16
