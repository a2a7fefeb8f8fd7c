"""A fuzzer: random programs, arrays, indices, files, flags and faults, compared with what is known.

``python -m tests.fuzz [area]`` (``make fuzz``) runs it; ``docs/fuzzing.md`` says how to read and
reduce what it finds. Each area is a module with one ``AREA``; :mod:`tests.fuzz.areas` lists them.
"""
