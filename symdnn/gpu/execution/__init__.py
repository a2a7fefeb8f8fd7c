"""Plans on a GPU and their runs: capture, replay, loops, transfers."""
