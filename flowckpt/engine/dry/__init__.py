"""Drives of the generator with all effects switched off: plans, searches, determinism."""
