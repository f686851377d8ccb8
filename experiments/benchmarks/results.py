"""Results of a benchmark as JSON, with the machine that they were measured on."""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_prep.base.files import atomic_path


def processor() -> str:
    """Return the processor's name, as far as the system tells."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def machine() -> dict[str, str]:
    """Return the processor, the versions that matter, and today's date."""
    return {
        "processor": processor(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def save(results: dict[str, Any], path: Path) -> None:
    """Write results and this machine as JSON."""
    with atomic_path(path) as part:
        part.write_text(json.dumps({"machine": machine(), **results}, indent=2) + "\n")
