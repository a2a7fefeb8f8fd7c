"""Measured choices, kept on disk."""
