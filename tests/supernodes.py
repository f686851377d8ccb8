"""SuperNodes that nothing starts again, unlike those of `stforecast node`, and changed nodes."""

from stforecast.flower.node_settings import NodeSettings
from stforecast.flower.supernode import free_port


def start_supernode(flower, name, data, first_client, key=None, paths=()):
    """Start a SuperNode at the SuperLink of a `LocalFlower`, with its private key if it has one."""
    authority = flower.keys.authority if flower.keys else None
    settings = NodeSettings(
        flower.address, data, first_client, root_certificates=authority, key=key,
        insecure=not authority,
    )  # fmt: skip
    flower.start(name, *settings.command(free_port()), paths=paths)


HOOK = """
import importlib.abc, importlib.util, sys

class Change(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "stforecast.flower.node":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), change(module))
        return spec

sys.meta_path.insert(0, Change())
"""


def changed_node(folder, change):
    """Return the `paths` of a process whose `stforecast.flower.node` is changed as its owner may.

    `change` is the text of a Python module with a function `change(module)`.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(change + HOOK)
    return [str(folder)]
