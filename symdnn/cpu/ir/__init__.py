"""Generating LLVM IR: builders, loops, scalar programs, mathematical functions."""
