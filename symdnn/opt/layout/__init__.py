"""Channels first or last, for the whole graph at once."""
