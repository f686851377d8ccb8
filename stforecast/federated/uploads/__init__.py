"""Uploads: compression, noise, robust aggregation, masks and privacy accounting."""
