"""The local page: what the commands show and do, in a browser. It has no engine of its own: actions start commands."""
