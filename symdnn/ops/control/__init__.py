"""Conditions, loops, graphs as ops."""
