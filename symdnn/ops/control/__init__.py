"""Conditions, loops, and graphs as ops."""
