"""Rewrites as values: patterns and functions of nodes, and what they ask about variables."""
