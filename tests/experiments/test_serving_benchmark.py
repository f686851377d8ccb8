"""Requests to a served forecast."""

import json

import pytest

from experiments.benchmarks.__main__ import main
from experiments.benchmarks.frame import table
from experiments.benchmarks.serving import SERVED


@pytest.mark.slow
def test_requests_are_answered_at_the_rate_that_was_asked(tmp_path, capsys):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    words = ["serve", "--cells", 30, "--days", 10, "--seconds", 0.4, "--clients", 2, "--rate", 10]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--out", str(tmp_path)])
    assert not ended.value.code
    found = json.loads((tmp_path / "serve.json").read_text())
    assert [row["what"] for row in found["rows"]] == [
        "one cell",
        "all 30 cells",
        "all 30 cells, CSV",
    ]
    for row in found["rows"]:
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["cpu_ms"] >= 0
        # Four requests are due within 0.3 s; none is sent before.
        assert 0 < row["answered"] <= 4 / 0.3
    assert table(found["rows"], SERVED) in capsys.readouterr().out
