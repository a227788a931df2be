"""How steps are done: one file an action, and what surrounds every action."""
