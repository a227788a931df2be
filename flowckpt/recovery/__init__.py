"""Recovery: which of the runs of a store are to be resumed now, and when one is tried again."""
