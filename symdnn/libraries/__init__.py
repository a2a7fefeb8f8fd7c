"""Vendors' libraries: a room for each with its rewrites, and one table of them.

A room holds lowerings (from a neutral op to an op of :mod:`symdnn.ops.vendor`, with conditions),
the library's other rewrites, and where its epilogues start. Nothing here needs the library itself.
"""
