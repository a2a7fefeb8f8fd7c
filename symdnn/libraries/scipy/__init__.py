"""SciPy: recursive filters."""
