"""The error word of a device: where it is, and its codes (``src/common.cuh``) as exceptions.

The error word is ``int32[4]`` in device memory: code, node, value, limit.
"""

from __future__ import annotations

from symdnn.errors import (
    AssertionFailed,
    DataError,
    IndexOutOfRange,
    LinAlgError,
    NanDetected,
    SymdnnError,
)
from symdnn.graph.values.guard import FAULT

#: Tickets are uint32 counters in the same allocation as the error word, from this offset in bytes.
#: A kernel's blocks count them to find the last block. They are zero whenever no kernel runs.
TICKETS_AT, TICKET_COUNT = 64, 1024

#: What keeps updates from being written when the host has ended the work before them.
CANCELLED = 11
#: Codes of matrices without a result.
NOT_POSITIVE, SINGULAR, NOT_CONVERGED = 7, 8, 9
_MATRIX_PROBLEMS = {
    NOT_POSITIVE: "not positive definite",
    SINGULAR: "singular",
    NOT_CONVERGED: "without eigenvalues or singular values (NaN?)",
}


def exception_of(code: int, value: int, limit: int) -> SymdnnError:
    """The exception for an error code that a kernel wrote, with its value and limit."""
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
    if code == 6:
        return NanDetected(FAULT)
    if code == 10:
        return DataError("wanted rates of at least 0 and below 1e15")
    if code in _MATRIX_PROBLEMS:
        what = _MATRIX_PROBLEMS[code]
        return LinAlgError(f"matrix {value} of the stack is {what} (status {limit})")
    return SymdnnError(f"a kernel reported error {code} (value {value}, limit {limit})")
