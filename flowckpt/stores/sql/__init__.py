"""What the SQL stores share: the tables, the rows, and the rules of owning and reading a run."""
