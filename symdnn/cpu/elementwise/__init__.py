"""Compiled elementwise loops, copies, gather and scatter, random numbers."""
