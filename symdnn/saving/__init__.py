"""Compiled functions in files: the user's graph as data, values by name, never a pickle."""

from symdnn.saving.files import load, save
from symdnn.saving.ops import saved_op

__all__ = ["load", "save", "saved_op"]
