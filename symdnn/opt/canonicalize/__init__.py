"""One form for equal expressions: algebra, shapes, indexing, constants, dead code."""
