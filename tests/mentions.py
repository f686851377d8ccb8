"""What a message must hold: options, names and numbers, not the sentence around them."""

import re


def mentions(text, *parts):
    """Return whether one line of a text holds the parts in this order, numbers as whole numbers.

    >>> mentions("line 31: column 'v' holds 'x', expected 3 numbers", "line 31", "'x'", "3")
    True
    >>> mentions("line 31: column 'v'", "line 3"), mentions("'v' in line 3", "line 3", "'v'")
    (False, False)
    """
    return re.search(".*".join(map(_whole, parts)), text) is not None


def _whole(part):
    before, after = r"(?<![\d.])" * part[:1].isdigit(), r"(?!\d)" * part[-1:].isdigit()
    return before + re.escape(part) + after
