"""Targets, and the execution of a program's segments, lazy choices and loops."""
