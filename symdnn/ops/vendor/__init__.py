"""Ops of vendors' libraries as plain data."""
