"""Loops of small steps as statements over memory, for printers that make one function of each."""
