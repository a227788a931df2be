"""Runs that leave their store: exported to one file, imported from it, copied from store to store."""
