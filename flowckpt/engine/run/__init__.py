"""The state of one attempt of a run while it lasts."""
