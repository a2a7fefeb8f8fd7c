"""Ops of ``com.microsoft``, which optimised, exported and quantised networks have."""
