"""The folder that `flwr run` takes: a Flower app of a few lines, and the run's configuration.

The app contains no code of its own: nodes run their owners' installation of `stforecast`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.atomic import atomic_path
from stforecast.flower.settings import RunSettings

PACKAGE = "stforecast_app"

CLIENT = """from stforecast.flower.client_app import make_client_app

app = make_client_app()
"""

SERVER = """from stforecast.flower.server_app import make_server_app

app = make_server_app()
"""

PROJECT = """[project]
name = "stforecast-app"
version = "1.0.0"
description = "Federated forecasting with {method}"
license = "Apache-2.0"
dependencies = []

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.flwr.app]
publisher = "stforecast"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
{config}
"""


def write_app(folder: Path, run: RunSettings) -> Path:
    """Write the app; files of an earlier one are replaced.

    Args:
        folder: folder of the app; created if missing.
        run: settings for the run's configuration.

    Returns:
        The folder.
    """
    config = "\n".join(f"{name} = {_toml(v)}" for name, v in run.as_run_config().items())
    files: Mapping[str, str] = {
        "pyproject.toml": PROJECT.format(method=run.config.method, package=PACKAGE, config=config),
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/client.py": CLIENT,
        f"{PACKAGE}/server.py": SERVER,
    }
    for name, text in files.items():
        with atomic_path(folder / name) as part:
            part.write_text(text)
    return folder


def _toml(value: Any) -> str:
    """Format a value as TOML; texts are in single quotes, as JSON has double ones."""
    if not isinstance(value, str):
        return repr(value).lower()
    return f"'{value}'" if "'" not in value and "\n" not in value else _basic(value)


def _basic(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
