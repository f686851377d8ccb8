"""The demo, on a benchmark that does not train."""

from click.testing import CliRunner

from experiments import demo as module


def test_a_demo_goes_on_where_it_was_and_ends_with_a_commands_own_message(tmp_path, monkeypatch):
    typed = []

    def main(args):
        typed.append(args[0])
        if args[0] == "bench":
            raise SystemExit(2)

    monkeypatch.setattr(module, "main", main)
    assert CliRunner().invoke(module.demo, ["--out", str(tmp_path)]).exit_code == 2
    assert typed == ["simulate", "prepare", "bench"]
    (tmp_path / "raw").mkdir()
    CliRunner().invoke(module.demo, ["--out", str(tmp_path)])
    (tmp_path / "milan.nc").touch()
    CliRunner().invoke(module.demo, ["--out", str(tmp_path)])
    assert typed[3:] == ["prepare", "bench", "bench"]
