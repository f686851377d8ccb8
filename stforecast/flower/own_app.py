"""Flower's process of a message, which runs this installation's app: `python -m …flower.own_app`.

Flower unpacks and runs the app that the server holds. A node does neither: it has all that the app
of `stforecast federate` imports, so whatever app the server holds, it runs no code of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points, version
from typing import Any

from data_prep.base.errors import InputError
from stforecast.flower.client_app import make_client_app

PROGRAM = "flwr-clientapp"
"""Name of Flower's program of a message."""

RUNNER = "flwr.supernode.runtime.run_clientapp"
"""Flower's module that runs it."""


def own_program() -> Callable[[], object]:
    """Return Flower's program of a message, with this installation's app in place of the server's.

    Raises:
        InputError: if this version of Flower runs an app in another way than the tested ones.
    """
    app = make_client_app()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise InputError("a node installs nothing that the server names")

    instead: dict[str, Any] = {
        "install_from_fab": lambda *args, **kwargs: None,
        "install_app_dependencies": refuse,
        "get_load_client_app_fn": lambda *args, **kwargs: lambda *app_of_server: app,
    }
    runner = importlib.import_module(RUNNER)
    if missing := [name for name in instead if not hasattr(runner, name)]:
        raise InputError(
            f"flwr {version('flwr')} has no {RUNNER}.{missing[0]}, so a node could not keep the "
            "server's code out; install the one that `pip install 'stforecast[flower]'` takes"
        )
    for name, function in instead.items():
        setattr(runner, name, function)
    (found,) = entry_points(group="console_scripts", name=PROGRAM)
    program: Callable[[], object] = found.load()
    return program


if __name__ == "__main__":
    own_program()()
