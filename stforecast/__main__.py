"""The `stforecast` command, also as `python -m stforecast`."""

import gc

# By default, garbage is searched for 700 times while torch and others are imported.
gc.set_threshold(10_000)

from stforecast.cli.main import main  # noqa: E402  after the threshold

if __name__ == "__main__":
    main()
