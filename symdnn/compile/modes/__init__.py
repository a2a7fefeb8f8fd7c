"""Modes that check rewrites and results, or watch calls."""
