"""Pure rules of a resume, shared with its plan: which results it reuses, which steps it runs, and why."""
