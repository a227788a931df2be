"""Stands before the real apsw in the path of a test's processes, as if that were not installed."""

raise ImportError("apsw is hidden by a test")
