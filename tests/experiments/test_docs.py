from experiments.docs import PARTS, README, updated


def test_the_readme_is_what_the_registries_say():
    text = README.read_text()
    assert all(f"<!-- {name}: generated -->" in text for name in PARTS)
    assert updated(text) == text, "run: python -m experiments.docs"


def test_a_stale_part_is_replaced():
    stale = "a\n<!-- methods: generated -->\noutdated text\n<!-- methods: end -->\nb"
    fresh = updated(stale)
    assert "outdated" not in fresh
    assert "`fuels`" in fresh
    assert fresh.startswith("a\n<!--")
    assert fresh.endswith("-->\nb")
    assert updated(fresh) == fresh
