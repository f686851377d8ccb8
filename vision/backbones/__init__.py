"""Frozen backbones: networks shared by all clients, with features computed only once."""
