"""Earlier checkpoints of a run: rollback and fork."""
