"""Settings outside of the program and of the command line: in the environment, and in `pyproject.toml`.

`settings` says what there is and what the values are, `read` where they come from.
"""
