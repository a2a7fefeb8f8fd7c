"""Modes that check: every rewrite, every result."""
