"""Groups of nodes that become one kernel, and where each node runs."""
