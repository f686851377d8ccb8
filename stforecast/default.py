"""The default method, in a module that is quick to import."""

from __future__ import annotations

DEFAULT_METHOD = "fedlean"
"""Method of a forecaster, and of the commands, where none is given."""
