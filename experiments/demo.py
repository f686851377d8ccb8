"""A demo of the whole workflow: `python -m experiments.demo --out demo`.

It runs the commands that a user would type, on a small simulated city in the published layout. Run
again, it keeps finished steps.
"""

from __future__ import annotations

import shlex
import time
from importlib import resources
from pathlib import Path

import click

from stforecast.cli.main import main

FIGURES = ("predictions", "cdf", "communication", "rounds", "map")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo"), show_default=True)
def demo(out: Path) -> None:
    """Simulate a city, prepare it, compare methods, draw figures and forecast the coming day."""
    start = time.perf_counter()
    config = resources.files("experiments") / "demo.toml"
    raw, cube, results = out / "raw", out / "milan.nc", out / "results"
    day = out / "coming-day"
    if not raw.exists():
        _type("simulate", "--city", "milan", "--cells", 25, "--days", 21, "--out", raw)
    if not cube.exists():
        _type("prepare", "milan", "--raw", raw, "--out", cube)
    _type("bench", config, "--data", cube, "--out", results)
    for figure in FIGURES:
        _type("plot", figure, results / "runs", "--out", out / f"{figure}.png")
    if not (day / "report.html").exists():
        _type("forecast", cube, "--service", "internet", "--horizon", 24, "--out", day)
    _type("plot", "intervals", day / "run", "--out", out / "intervals.png")
    click.echo(f"\nDone in {time.perf_counter() - start:.0f} s. Pictures:")
    for figure in (*FIGURES, "intervals"):
        click.echo(f"  {(out / figure).resolve()}.png")
    click.echo(f"The methods compared, with a map: {(results / 'report.html').resolve()}")
    click.echo(f"The coming day, with bounds: {(day / 'forecast.csv').resolve()}")


def _type(*words: object) -> None:
    """Show a command and run it; if it fails, exit with its message and code."""
    args = [str(w) for w in words]
    click.secho(f"\n$ stforecast {shlex.join(args)}", bold=True)
    try:
        main(args)
    except SystemExit as done:
        if done.code:
            raise


if __name__ == "__main__":
    demo()
