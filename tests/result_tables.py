"""Results of forecasts as the page of a benchmark shows them."""

from stforecast.bench.tables import in_markdown
from stforecast.comparison.results import results_parts


def results_table(*runs_and_failures, **options):
    """The tables of finished and failed runs, as Markdown."""
    return in_markdown(results_parts(*runs_and_failures, **options))
