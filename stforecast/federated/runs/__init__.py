"""Runs on disk: run folders and their locks, checkpoints, saved models."""
