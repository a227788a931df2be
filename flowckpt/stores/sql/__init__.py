"""The shared parts of the SQL stores: tables, rows, and the rules for owning and reading a run."""
