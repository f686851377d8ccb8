"""Federated forecasting on real nodes, with Flower's SuperLink and SuperNodes (extra `flower`).

The rest of `stforecast` does not import this package, and Flower is imported only when needed.
"""
