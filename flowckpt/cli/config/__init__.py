"""Settings outside of the program and of the command line: in the environment, and in `pyproject.toml`.

`table` says what there is, `kinds` what values are, `reading` where they come from.
"""
