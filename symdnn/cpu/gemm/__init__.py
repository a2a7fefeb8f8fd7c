"""Compiled matrix products."""
