"""Plans of cuFFT, by nvmath-python's bindings. Kept by what they compute, on each device.

A plan owns no work area: the plan of the function gives it a part of its arena at each launch.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from symdnn.gpu.device.context import existing_context

#: Plans that are kept for later functions.
_MOST_PLANS = 64
#: (cuFFT's type, the function that executes it) by the dtypes of operand and result.
_KINDS = {
    ("complex64", "complex64"): ("C2C", "exec_c2c"),
    ("complex128", "complex128"): ("Z2Z", "exec_z2z"),
    ("float32", "complex64"): ("R2C", "exec_r2c"),
    ("float64", "complex128"): ("D2Z", "exec_d2z"),
    ("complex64", "float32"): ("C2R", "exec_c2r"),
    ("complex128", "float64"): ("Z2D", "exec_z2d"),
}
_FORWARD, _INVERSE = -1, 1


@cache
def problem() -> str | None:
    """Why cuFFT can't be used; None if it can be."""
    try:
        bindings().get_version()
    except ImportError as error:
        return f"{error}. Install symdnn[cuda]"
    except Exception as error:  # what the loader raises is nvmath-python's own
        return f"cuFFT was not found: {error}"
    return None


def bindings() -> Any:
    """``nvmath.bindings.cufft``."""
    from nvmath.bindings import cufft

    return cufft


@dataclass(frozen=True)
class Signature:
    """What a plan computes: dtypes, the ``sizes`` in the space of the longer operand, a batch.

    Operand and result are contiguous.
    """

    source: str
    target: str
    sizes: tuple[int, ...]
    batch: int

    @property
    def halved(self) -> tuple[int, ...]:
        """The sizes of the operand of complex numbers, if the other one is real."""
        return (*self.sizes[:-1], self.sizes[-1] // 2 + 1)


class Plan:
    """A ``cufftHandle`` of one device, and the bytes of its work area."""

    def __init__(self, signature: Signature) -> None:
        self._library = library = bindings()
        kind, execute = _KINDS[signature.source, signature.target]
        self._complex = kind in ("C2C", "Z2Z")
        read = signature.halved if kind in ("C2R", "Z2D") else signature.sizes
        written = signature.halved if kind in ("R2C", "D2Z") else signature.sizes
        self._execute = getattr(library, execute)
        self._handle = library.create()
        library.set_auto_allocation(self._handle, 0)
        self.workspace_bytes = int(
            library.make_plan_many64(
                self._handle, len(signature.sizes), signature.sizes, read, 1, prod(read),
                written, 1, prod(written), int(library.Type[kind]), signature.batch,
            )
        )  # fmt: skip

    def run(self, source: int, target: int, inverse: bool, workspace: int, stream: int) -> None:
        """Enqueue the transform, from and to these addresses."""
        library, handle = self._library, self._handle
        library.set_stream(handle, stream)
        if self.workspace_bytes:
            library.set_work_area(handle, workspace)
        if self._complex:
            self._execute(handle, source, target, _INVERSE if inverse else _FORWARD)
        else:
            self._execute(handle, source, target)

    def __del__(self) -> None:
        try:
            self._library.destroy(self._handle)
        except Exception:  # at the end of the process, or after an error of the constructor
            return


_plans: OrderedDict[tuple[Any, ...], Plan] = OrderedDict()


def plan_for(signature: Signature) -> Plan:
    """The plan on the device whose context is locked. It may be made: never in a capture."""
    found = existing_context()
    key = (None if found is None else found.index, signature)
    if key not in _plans:
        while len(_plans) >= _MOST_PLANS:
            _plans.popitem(last=False)
        _plans[key] = Plan(signature)
    _plans.move_to_end(key)
    return _plans[key]
