"""Solo: every client trains on its own data and nothing is sent.

The reference that any federation must beat (FUELS, arXiv 2404.03702, appendix D.1).
"""

from stforecast.federated.method import Method


class Solo(Method):
    """Local training only; the base class is just that."""

    name = "solo"
    summary = "each client trains alone; nothing is sent"
    paper = "FUELS, appendix D.1"
