"""The federated core: populations of clients, methods over them, and what the methods exchange.

It knows nothing of series or images; `stforecast` and `vision` are its users.
"""
