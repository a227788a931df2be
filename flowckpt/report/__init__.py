"""Pages and pictures of recorded runs: what happened when, what depends on what, and what a resume would do."""
