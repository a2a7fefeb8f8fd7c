"""Vendors' libraries: what each takes of a graph. A room for each, and one table of them.

A room holds lowerings (from which neutral op to which of :mod:`symdnn.ops.vendor`, and when), the
rewrites that are the library's own, and where its epilogues begin. Nothing here needs the library.
"""
