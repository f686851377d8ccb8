"""Who runs a method: trainer, server, rounds, and how clients share the machine."""
