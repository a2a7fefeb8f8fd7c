"""Rewrites as values: patterns and functions of nodes, and facts about variables for them."""
