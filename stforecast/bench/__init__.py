"""Benchmarks of any kind: grid, jobs, tables, comparisons and drawing.

It depends on finished runs (`stforecast.federated.runs.run_folder`) only, not on the learning task.
"""

LOCAL, RAY = "local", "ray"
"""Engines: sequential in this process, or parallel by Ray."""
