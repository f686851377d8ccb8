"""What MkDocs does with pages, named in `mkdocs.yml`: hooks, and an extension of mkdocstrings.

Files of the root become pages, references are generated, and equations become MathML. A page that
holds `<!-- docstring of vision.methods.gldp from "Choices where" -->` shows that part of the
docstring, so that a method's choices are written down once, in its module.
"""

from __future__ import annotations

import ast
import html
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import griffe

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

PART = re.compile(r'^<!-- docstring of ([\w.]+) from "([^"]+)" -->$', re.M)

MATHS = re.compile(r'<(span|div) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.S)
"""An equation as pymdownx's arithmatex leaves it."""

DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
"""An example that stands in no section, up to the next empty line."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie in `docs/`."""
    from mkdocs.structure.files import File

    texts = {page: moved_links((ROOT / name).read_text()) for name, page in PAGES.items()}
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
    return MATHS.sub(_mathml, html)


def moved_links(text: str) -> str:
    """Return a file of the root with its links as they are from `docs/`.

    >>> moved_links("[a](docs/a.md#b), [c](CHANGELOG.md)")
    '[a](a.md#b), [c](changelog.md)'
    """
    text = re.sub(r"(?<=\]\()docs/", "", text)
    for name, page in PAGES.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text


def with_docstrings(page: str) -> str:
    """Return a page with the parts of docstrings that it asks for."""
    return PART.sub(lambda found: docstring_from(found[1], found[2]), page)


def docstring_from(module: str, begin: str) -> str:
    """Return a module's docstring from some words on.

    Raises:
        ValueError: if the docstring does not have them.

    >>> docstring_from("experiments.site.hooks", "Files of the root").partition(" become")[0]
    'Files of the root'
    """
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
    _, found, rest = (ast.get_docstring(ast.parse(source)) or "").partition(begin)
    if not found:
        raise ValueError(f"the docstring of {module} has no {begin!r}")
    return begin + rest


def _mathml(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert  # of the extra `docs`

    tag, latex = found[1], html.unescape(found[2])
    return convert(latex, display="block" if tag == "div" else "inline")


class Examples(griffe.Extension):
    """Puts every example into a section `Examples:`, the only place where it is read as code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section `Example:` of a docstring, and give its other examples one."""
        if obj.docstring:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = DOCTEST.sub(
                lambda example: "Examples:\n" + textwrap.indent(example[0], "    "), text
            )
