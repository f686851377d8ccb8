"""Extension of mkdocstrings: `Example:` of our docstrings is its section of examples."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Lets the examples of docstrings be shown as code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of an object that has one."""
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.M)
