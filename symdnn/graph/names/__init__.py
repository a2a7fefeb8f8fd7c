"""Names of sizes that are known in a call only, and how they follow from node to node."""
