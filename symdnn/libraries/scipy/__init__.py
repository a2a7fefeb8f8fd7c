"""From neutral ops to SciPy's."""
