"""Federated forecasting on real nodes, with Flower's SuperLink and SuperNodes (extra `flower`).

Nothing here is imported unless it is asked for, and Flower by nothing before it is needed.
"""
