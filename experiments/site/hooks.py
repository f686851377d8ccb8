"""Hooks of MkDocs, named in `mkdocs.yml`: pages of the root's files, generated pages, equations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.site.choices import with_docstrings
from experiments.site.maths import with_mathml
from experiments.site.references import commands_page, options_page

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages that are files of the root, by the file."""

GENERATED = {"reference/commands.md": commands_page, "reference/options.md": options_page}
"""Functions that write a page, by the page."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie in `docs/`."""
    from mkdocs.structure.files import File

    texts = {page: moved((ROOT / name).read_text()) for name, page in PAGES.items()}
    texts |= {page: write() for page, write in GENERATED.items()}
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add the docstrings that a page asks for; the start page needs no list of its section."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
    return with_docstrings(markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Write the equations of a page as MathML."""
    return with_mathml(html)


def moved(text: str) -> str:
    """Return a file of the root with its links as they are from `docs/`.

    >>> moved("[a](docs/a.md#b), [c](CHANGELOG.md)")
    '[a](a.md#b), [c](changelog.md)'
    """
    text = re.sub(r"(?<=\]\()docs/", "", text)
    for name, page in PAGES.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text
