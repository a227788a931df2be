"""Settings from the environment and `pyproject.toml`: `settings` defines them, `read` reads them."""
