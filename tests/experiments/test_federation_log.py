"""A server's log that is followed, here one that nothing writes to."""

import json

from experiments.local_flower import events_of, follow


def test_a_scene_comes_after_the_report_of_its_round_and_after_no_other_line(tmp_path, capsys):
    def finish():
        seen.append(1)
        (tmp_path / "federation.json").write_text('{"nodes": 2}')

    events = [{"event": "lost", "node": 7, "round": 2}, {"event": "round", "round": 1}]
    assert events_of(tmp_path, "round") == []
    (tmp_path / "server.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in events))
    (tmp_path / "server.log").write_text("round 2: lost node 7 (Ångström)\nround 1: 9 of 9\nrou")
    seen = []
    about = follow(None, "1", tmp_path, scenes={1: finish, 2: lambda: seen.append(2)})
    assert (about, seen) == ({"nodes": 2}, [1])
    assert capsys.readouterr().out == "  round 2: lost node 7 (Ångström)\n  round 1: 9 of 9\n"
    assert events_of(tmp_path, "round") == events[1:]
