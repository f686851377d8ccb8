"""Pages on finished forecasts, as commands write them."""

from stforecast.report.write import ReportPage


def write_report(runs, out, metric="mase", title="Forecasts compared", ahead=None):
    """Write a page on runs, which begins with a history and what follows it, if they are given."""
    page = ReportPage()
    if ahead is not None:
        page.add_outlook(runs[0], *ahead)
    page.add_forecasts(runs, metric)
    return page.write(out, title)
