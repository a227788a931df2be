"""One start or resume of a run, from taking the lease to the final event."""
