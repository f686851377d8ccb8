"""Figures of experiments with images; each function returns a matplotlib figure."""

from vision.plots.partition import partition

__all__ = ["partition"]
