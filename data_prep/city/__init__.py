"""Simulator of an invented city: its cells, their activity and its raw days."""
