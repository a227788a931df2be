"""The output of commands: tables, plans, documents and errors."""
