"""The federated core: populations of clients, methods over them, and what the methods exchange.

It is independent of time series and images; `stforecast` and `vision` build on it.
"""
