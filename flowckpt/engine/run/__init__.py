"""What one attempt of a run knows while it lasts."""
