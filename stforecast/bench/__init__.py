"""What a benchmark of any kind needs: grid, jobs, tables, comparisons and drawing.

It knows finished runs (`stforecast.federated.runs.run`), never what was learned.
"""
