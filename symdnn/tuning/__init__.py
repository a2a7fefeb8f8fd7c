"""Measured choices: one way to try candidates, one store on disk, for every family of kernels."""
