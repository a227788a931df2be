"""The values that callers hand to the engine and get back from it."""
