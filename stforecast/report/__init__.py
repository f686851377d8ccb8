"""A page on finished runs: one HTML file that opens without a network."""
