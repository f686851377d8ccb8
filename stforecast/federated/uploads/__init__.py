"""Uploads: payloads, compression and noise on their way, robust aggregation, privacy accounting."""
