"""Targets, and the run of a program's segments and loops."""
