"""Loops of small steps as one compiled function each."""
