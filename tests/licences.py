"""Write `licences.csv`: the SPDX licence of every locked package that is installed.

    .venv/bin/python tests/licences.py && .venv-flower/bin/python tests/licences.py

A package that is in neither environment keeps its row, or is "not checked". Only the licence that a
package declares is read, not those of the libraries inside its wheels.
"""

import csv
import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "licences.csv"
UNCHECKED = "not checked"

SPDX = {
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "3-Clause BSD License": "BSD-3-Clause",
}
"""Licences by the classifier or the words of a package."""


def declared(package: Distribution) -> str:
    """The SPDX expression of a package, which many give in other words."""
    about = package.metadata
    kinds = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", [])]
    texts = [about.get("License-Expression"), about.get("License")]
    for text in filter(None, texts):
        try:
            return canonicalize_license_expression(SPDX.get(text, text))
        except InvalidLicenseExpression:
            continue
    kinds += [str(about.get("License"))]
    found = {bsd(package) if k in ("BSD License", "BSD") else SPDX.get(k, "") for k in kinds}
    return " OR ".join(sorted(found - {""})) or UNCHECKED


def bsd(package: Distribution) -> str:
    """Which BSD licence, by the number of clauses in its text."""
    files = [f for f in package.files or [] if re.match("licen[cs]e|copying", f.name.lower())]
    text = "".join(f.read_text() for f in files if f.locate().exists())
    if "Redistribution" not in text:
        return ""
    return "BSD-3-Clause" if re.search(r"Neither\s+the\s+names?", text) else "BSD-2-Clause"


def core() -> set[str]:
    """Names of the packages that come with stforecast without an extra."""
    names: set[str] = set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo = project["dependencies"]
    while todo:
        wanted = Requirement(todo.pop())
        name = canonicalize_name(wanted.name)
        if name not in names and (not wanted.marker or wanted.marker.evaluate({"extra": ""})):
            names.add(name)
            todo += distribution(name).requires or []
    return names


def locked() -> list[str]:
    """Names of all locked packages, and setuptools, which torch needs and pip-tools never locks."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [*(line.partition("==")[0] for line in lines if "==" in line), "setuptools"]


def read() -> dict[str, dict[str, str]]:
    """Rows of the table by package."""
    with TABLE.open(newline="") as file:
        return {row["package"]: row for row in csv.DictReader(file)}


def main() -> None:
    """Write the table."""
    before, own = read() if TABLE.exists() else {}, core()
    with TABLE.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("package", "licence", "core"))
        for name in locked():
            try:
                found = declared(distribution(name))
            except PackageNotFoundError:
                found = before[name]["licence"] if name in before else UNCHECKED
            table.writerow((name, found, "yes" if name in own else ""))


if __name__ == "__main__":
    main()
