"""The base of modules: parameters, state, names, summaries."""
