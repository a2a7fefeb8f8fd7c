"""Methods of a variable, a family in each module."""
