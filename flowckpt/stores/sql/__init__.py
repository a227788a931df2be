"""The parts that the SQL stores share: tables, rows, and the rules of owning and reading a run."""
