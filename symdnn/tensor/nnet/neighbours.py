"""Patches of images as rows of a matrix, and back."""

from symdnn.ops.nn.neighbours import images2neibs, neibs2images

__all__ = ["images2neibs", "neibs2images"]
