"""What is done to stored runs: retention, export and import, recovery, comparison."""
