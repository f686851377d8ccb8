"""XML from strangers, read element by element in constant memory; entities are refused."""

from __future__ import annotations

from typing import IO, Any
from xml.parsers import expat

DEEPEST = 64
"""Most elements within each other."""

CHUNK = 2**16
"""Bytes that are parsed at a time."""


class Handlers:
    """What is done at the begin and the end of elements, whose names have no prefix.

    Attributes:
        texts: text since the last begin of an element.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Handle the begin of an element."""

    def stop(self, tag: str) -> None:
        """Handle the end of an element."""


def parse(file: IO[bytes], handlers: Handlers) -> None:
    """Parse a file of XML.

    Raises:
        ValueError: if it is not valid XML, declares entities, is nested too deep, or lacks an
            attribute that a handler looks up.
    """
    parser, depth = expat.ParserCreate(), 0
    parser.buffer_text = True

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"elements are nested more than {DEEPEST} deep")
        handlers.texts = []
        handlers.start(tag.rpartition(":")[2] if ":" in tag else tag, attributes)

    def stop(tag: str) -> None:
        nonlocal depth
        depth -= 1
        handlers.stop(tag.rpartition(":")[2] if ":" in tag else tag)

    def refuse(*declared: Any) -> None:
        raise ValueError(f"it declares the entity {declared[0]!r:.40}, which is not read")

    parser.StartElementHandler, parser.EndElementHandler = start, stop
    parser.CharacterDataHandler = lambda text: handlers.texts.append(text)
    parser.EntityDeclHandler = refuse
    try:
        while chunk := file.read(CHUNK):
            parser.Parse(chunk, False)
        parser.Parse(b"", True)
    except expat.ExpatError as e:
        raise ValueError(f"not valid XML: {e}") from e
    except KeyError as e:
        raise ValueError(f"line {parser.CurrentLineNumber}: no attribute {e}") from e
