"""Damages that the tests of bad input do to files: each is a function of the file's path."""

import json
from pathlib import Path


class Bomb:
    """A pickle that makes a file when it is loaded."""

    def __reduce__(self):
        return Path.touch, (Path("pickle was loaded"),)


def npy_header(shape, descr):
    """An `.npy` file that ends before its values."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def json_of(change):
    """Changes the object of a JSON file."""

    def damage(path):
        about = json.loads(path.read_text())
        change(about)
        path.write_text(json.dumps(about))

    return damage
