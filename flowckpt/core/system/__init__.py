"""The interpreter and the operating system as small ports: clock, ids, files, processes, threads."""
