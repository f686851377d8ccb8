"""Tests match messages by options, names and numbers; `python tests/test_wording.py` lists others.

Listed are expected texts with three or more plain words: `match=` of `pytest.raises`, texts that
are searched in a message or an output, patterns of `re.search`, and the values that `parametrize`
gives to these.
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MOST = 300
"""Help texts, pages and transcripts are compared on purpose."""

OUTPUT = re.compile(
    r"(^|[._\[(])\w*(err|out|text|stdout|output|message|messages|msg|logs?|logged|printed|shown|"
    r"said|notes?|lines?|record|refused|caught|info|error|warnings?)([.(\[)]|$)"
)
"""Expressions that hold what a command or a function said."""

NAMES = re.compile(
    r"(?<!\w)'[^']*'|\"[^\"]*\"|`[^`]*`"  # quoted
    r"|\{[^}]*\}|\\[a-zA-Z]|\(\?\w+\)"  # fields and parts of patterns
    r"|--?[\w-]+|[\w\\/-]*(\\?[./_]|\d)[\w\\/.-]+"  # options, files, names with _, numbers
)


def plain_words(text):
    """Return the words of two letters or more, without names, numbers and what is quoted.

    >>> plain_words("line 3 of my.csv: no column 'v'; pass --service for another")
    ['line', 'of', 'no', 'column', 'pass', 'for', 'another']
    """
    return re.findall(r"(?<![\w-])[A-Za-z]?[a-z]+[a-z](?![\w-])", NAMES.sub(" ", text))


def text_of(node):
    """Return the text of a constant or an f-string, with `{}` for fields, or None."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (text_of(left) or "{}") + (text_of(right) or "{}")
        case ast.Call(func=ast.Attribute(attr="escape"), args=[inner]):
            return text_of(inner)
    return None


def expected(nodes):
    """Yield the nodes of the texts that assertions among some nodes expect."""
    for node in nodes:
        match node:
            case ast.keyword(arg="match", value=value):
                yield value
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[text, *_]):
                if name in ("search", "match", "fullmatch", "findall"):
                    yield text
            case ast.Call(func=ast.Name(id="mentions"), args=[_, *parts]):
                yield from parts
            case ast.Compare(left=text, ops=[ast.In() | ast.NotIn()], comparators=[where]):
                if OUTPUT.search(ast.unparse(where)):
                    yield text


def parameters(test):
    """Yield (name, node) of each value that `parametrize` gives to a test."""
    for mark in test.decorator_list:
        match mark:
            case ast.Call(
                func=ast.Attribute(attr="parametrize"),
                args=[names, ast.List(elts=rows) | ast.Tuple(elts=rows), *_],
            ):
                names = ast.literal_eval(names)
                names = names.replace(",", " ").split() if isinstance(names, str) else names
            case _:
                continue
        for row in rows:
            if getattr(getattr(row, "func", None), "attr", "") == "param":
                yield from zip(names, row.args, strict=False)
            elif len(names) == 1:
                yield names[0], row
            else:
                yield from zip(names, getattr(row, "elts", []), strict=False)


def sentences(source):
    """Return {line: text} of expected texts with three or more plain words.

    >>> sentences("assert 'there is no such file' in err\\nassert 'no --out' in err")
    {1: 'there is no such file'}
    """
    nodes, found = [*ast.walk(ast.parse(source))], []
    for test in (n for n in nodes if isinstance(n, ast.FunctionDef)):
        if given := [*parameters(test)]:
            texts = expected(ast.walk(test))
            names = {n.id for e in texts for n in ast.walk(e) if isinstance(n, ast.Name)}
            found += [value for name, value in given if name in names]
    texts = [(node.lineno, text_of(node)) for node in (*found, *expected(nodes))]
    return {line: text for line, text in texts if text and len(plain_words(text)) > 2}


def listed():
    """Return lines `file:line: text` of all tests."""
    return [
        f"{path.relative_to(TESTS.parent)}:{line}: {text}"
        for path in sorted(TESTS.rglob("*.py"))
        for line, text in sorted(sentences(path.read_text()).items())
    ]


def test_few_tests_fail_if_a_sentence_changes():
    found = len(listed())
    assert found <= MOST, (
        f"{found} lines of tests match sentences, at most {MOST}: match options, names and "
        "numbers instead, by tests/mentions.py if they are apart; `python tests/test_wording.py`"
    )


@pytest.mark.parametrize(
    "line",
    [
        "with pytest.raises(ValueError, match='too many of them'): pass",
        "assert re.search(f'too many of {them}s', text)",
        "assert 'too many of them' not in capsys.readouterr().err",
        "assert mentions(caplog.text, '3', 'too many of them')",
        "@pytest.mark.parametrize('a', ['too many of them'])\ndef test(a):\n    assert a in err",
        "@pytest.mark.parametrize('a, b', [(1, 'too many of them')])\n"
        "def test(a, b):\n    assert re.search(b, err)",
    ],
)
def test_sentences_are_found(line):
    assert len(sentences(line)) == 1
    assert sentences(line.replace("too many", "--lr")) == {}


if __name__ == "__main__":
    print(*listed(), sep="\n")  # noqa: T201
    print(len(listed()))  # noqa: T201
