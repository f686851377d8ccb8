"""The `stforecast` command, also as `python -m stforecast`."""

from __future__ import annotations

import importlib
import sys

from stforecast.hidden import check_not_hidden


def main() -> None:
    """Run the command line of `experiments`, unless a file of the user hides a package of ours."""
    try:
        check_not_hidden("data_prep", "vision", "experiments")
    except ImportError as e:
        sys.exit(f"stforecast: {e}")
    # By name, since this layer knows none above it.
    importlib.import_module("experiments.cli").main()


if __name__ == "__main__":
    main()
