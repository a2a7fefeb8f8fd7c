"""Shared variables whose values are stored in parts on several ranks, and graphs that read them.

A program is written with whole values. Before it is compiled, each such variable is replaced by the
rank's part, and collectives are inserted where a whole value is needed.
"""
