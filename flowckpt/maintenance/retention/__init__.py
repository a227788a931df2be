"""Retention: which checkpoints of a live run stay, and which runs of a store."""
