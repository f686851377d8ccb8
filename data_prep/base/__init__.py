"""What all readers share: errors, text, registries, limits, and safe writing."""
