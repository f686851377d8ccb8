"""Uploads: payloads, compression, noise, robust aggregation and privacy accounting."""
