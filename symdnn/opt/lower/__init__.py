"""Lowerings of neutral ops to ops of libraries, independent of the library."""
