"""Places, stores and groups of processes."""
