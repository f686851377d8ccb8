"""Windows of made-up series, whose steps are hours from a Monday's midnight on."""

import numpy as np
import pandas as pd

from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import History, Windows

HOURS = Calendar(pd.Timestamp("1970-01-05"), pd.Timedelta("1h"))
"""The slot of a step is the step itself, modulo the period."""


def cut_windows(
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar = HOURS,
    *,
    with_next: bool = False,
) -> Windows:
    """Cut the windows whose first targets are `starts`."""
    history = History.of(series, spec, calendar)
    return history.windows(history.sources(starts), with_next=with_next)
