"""Functions of arrays by numexpr, which computes expressions in blocks of the cache."""
