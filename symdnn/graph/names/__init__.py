"""Names of sizes that are known in a call only, and their propagation through the graph."""
