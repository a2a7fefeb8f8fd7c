"""Programs: the schedule of a graph in segments, its places, and the parameter cache."""
