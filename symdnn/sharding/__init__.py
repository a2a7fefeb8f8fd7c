"""Shared variables whose values are kept as parts on several ranks, and the graphs that read them.

A program is written of whole values. Before it is compiled, each such variable in it is replaced by
what a rank has of it, and collectives are inserted where a whole value is needed.
"""
