"""The `stforecast` command, also as `python -m stforecast`."""

from stforecast.cli.main import main

if __name__ == "__main__":
    main()
