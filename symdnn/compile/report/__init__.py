"""Reports and profiles of compiled functions."""
