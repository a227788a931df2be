"""The output of commands: tables, plans and documents."""
