"""Pages and pictures of recorded runs: timeline, graph, comparison and plan."""
