"""Methods of the core that use keys or networks on features, whatever the task."""

RECENT = (
    "moon", "fedala", "fedtgp", "feddbe", "gpfl", "fedcp", "fedamp", "pfedgraph", "fedpac",
    "fedaghn",
)  # fmt: skip
