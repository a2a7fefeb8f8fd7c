"""What a module is: parameters, state, names, summaries."""
