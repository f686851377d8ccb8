"""Kinds of cell in an invented city, and their weekly profiles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of cell.

    Args:
        peak: median over its cells of the Internet activity in a busy ten-minute interval.
        foreign: activity of other countries, relative to a city mean of about 1.
        workday: activity relative to `peak` at 0, 2, …, 22 h local time, Monday to Thursday.
        saturday: the same for Saturday.
        sunday: the same for Sunday.
        friday: the same for Friday; None to use `workday`.
    """

    peak: float
    foreign: float
    workday: tuple[float, ...]
    saturday: tuple[float, ...]
    sunday: tuple[float, ...]
    friday: tuple[float, ...] | None = None

    def week(self) -> tuple[float, ...]:
        """Return the profile from Monday 0 h to Sunday 22 h, every two hours, `(84,)`."""
        friday = self.friday or self.workday
        return self.workday * 4 + friday + self.saturday + self.sunday


KINDS = {
    "centre": Kind(  # offices and shops: a plateau by day, shoppers on Saturday, a quiet Sunday
        peak=650.0,
        foreign=2.0,
        workday=(0.35, 0.26, 0.23, 0.28, 0.66, 0.93, 1.00, 0.95, 0.98, 0.92, 0.66, 0.50),
        saturday=(0.42, 0.31, 0.25, 0.25, 0.42, 0.68, 0.80, 0.84, 0.88, 0.78, 0.64, 0.54),
        sunday=(0.43, 0.32, 0.25, 0.23, 0.31, 0.48, 0.58, 0.62, 0.64, 0.58, 0.49, 0.42),
    ),
    "suburb": Kind(  # homes: a step in the morning, busiest in the evening
        peak=220.0,
        foreign=0.5,
        workday=(0.50, 0.39, 0.35, 0.42, 0.72, 0.66, 0.69, 0.69, 0.79, 0.94, 1.00, 0.82),
        saturday=(0.55, 0.42, 0.36, 0.37, 0.54, 0.74, 0.80, 0.77, 0.81, 0.90, 0.89, 0.76),
        sunday=(0.57, 0.44, 0.36, 0.35, 0.48, 0.70, 0.82, 0.79, 0.83, 0.95, 0.99, 0.77),
    ),
    "nightlife": Kind(  # bars and clubs: quiet by day, busy on Friday and Saturday nights
        peak=360.0,
        foreign=1.5,
        workday=(0.40, 0.26, 0.21, 0.23, 0.36, 0.45, 0.50, 0.48, 0.56, 0.70, 0.74, 0.62),
        friday=(0.40, 0.26, 0.21, 0.23, 0.36, 0.46, 0.52, 0.51, 0.62, 0.82, 1.08, 1.35),
        saturday=(1.30, 0.85, 0.42, 0.27, 0.32, 0.44, 0.52, 0.54, 0.63, 0.85, 1.15, 1.45),
        sunday=(1.40, 0.95, 0.45, 0.28, 0.30, 0.40, 0.48, 0.48, 0.51, 0.56, 0.54, 0.46),
    ),
    "industrial": Kind(  # plants and warehouses: shifts on workdays, very little otherwise
        peak=170.0,
        foreign=0.4,
        workday=(0.20, 0.18, 0.19, 0.38, 0.90, 1.00, 0.88, 0.98, 0.82, 0.42, 0.27, 0.22),
        saturday=(0.20, 0.18, 0.18, 0.23, 0.33, 0.37, 0.34, 0.29, 0.27, 0.24, 0.22, 0.20),
        sunday=(0.19, 0.17, 0.16, 0.17, 0.19, 0.21, 0.22, 0.22, 0.22, 0.21, 0.20, 0.19),
    ),
}
