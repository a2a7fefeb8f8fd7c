"""What the error word means: the codes of ``src/common.cuh`` as exceptions."""

from __future__ import annotations

from symdnn.errors import AssertionFailed, DataError, IndexOutOfRange, SymdnnError

__all__ = ["fault"]


def fault(code: int, value: int, limit: int) -> SymdnnError:
    """The exception for what a kernel wrote into the error word."""
    if code == 1:
        return IndexOutOfRange(f"index {value} is out of range for an axis of size {limit}")
    if code == 2:
        return AssertionFailed(f"a condition that was asserted is false (condition {value})")
    if code == 3:
        return IndexOutOfRange(f"label {value} is none of the {limit} classes (0 to {limit - 1})")
    if code == 4:
        return DataError(f"no integer in [{value}, {limit}) (low, high)")
    if code == 5:
        return DataError("weights must be >= 0, and enough of each row > 0")
    return SymdnnError(f"a kernel reported error {code} (value {value}, limit {limit})")
