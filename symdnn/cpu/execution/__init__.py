"""Plans on a CPU and their runs."""
