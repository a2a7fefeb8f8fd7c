"""float32's functions written into a function's lines for whole vectors, lane by lane.

:mod:`symdnn.cpu.math32_ir` has them for one number, for LLVM's vectoriser. Kernels that are made of
vectors already go through no passes of LLVM's, so the same lines are widened here.
"""

from __future__ import annotations

import re
from functools import cache

from symdnn.cpu.math32_ir import single_definitions
from symdnn.cpu.vector_ir import MASK, VECTOR, WIDTH, VectorSource

__all__ = ["declared_lanes", "one_less", "sigmoid", "tanh"]

_HEAD = re.compile(r"define internal float @(\w+)\(float (%\w+)\)")
_CALLED = re.compile(r"call float @(s_\w+)\(float (%\w+)\)")
_ONE = "0x3FF0000000000000"


def declared_lanes() -> list[str]:
    """Declarations of what the lines call."""
    return [
        f"declare {VECTOR} @llvm.fmuladd.v{WIDTH}f32({VECTOR}, {VECTOR}, {VECTOR})",
        f"declare {VECTOR} @llvm.copysign.v{WIDTH}f32({VECTOR}, {VECTOR})",
        f"declare {VECTOR} @llvm.fabs.v{WIDTH}f32({VECTOR})",
    ]


def tanh(s: VectorSource, x: str) -> str:
    """The hyperbolic tangent."""
    return _written(s, "s_tanh", x)


def sigmoid(s: VectorSource, x: str) -> str:
    """1 / (1 + exp(-x)): right for all numbers, infinities and NaN too."""
    e = _written(s, "s_exp", s.new(_widened(f"fneg float {x}")))
    below = s.new(_widened(f"fadd float {_ONE}, {e}"))
    return s.new(_widened(f"fdiv float {_ONE}, {below}"))


def one_less(s: VectorSource, x: str) -> str:
    """1 - x"""
    return s.new(_widened(f"fsub float {_ONE}, {x}"))


@cache
def _texts() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Function -> (its parameter, its lines)."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    name, parameter, lines = "", "", list[str]()
    for line in single_definitions({"exp", "tanh"}):
        if head := _HEAD.match(line):
            name, parameter, lines = head[1], head[2], []
        elif line == "}":
            found[name] = parameter, tuple(lines)
        else:
            lines.append(line)
    return found


def _written(s: VectorSource, name: str, x: str) -> str:
    """The value of a function, whose lines are put into ``s``."""
    parameter, lines = _texts()[name]
    known = {parameter: x}
    *body, last = lines
    for line in body:
        register, _, value = line.partition(" = ")
        if called := _CALLED.fullmatch(value):
            known[register] = _written(s, called[1], known[called[2]])
        else:
            known[register] = s.new(_widened(re.sub(r"%\w+", lambda m: known[m[0]], value)))
    return known[last.split()[-1]]


def _widened(line: str) -> str:
    """A line about numbers as one about vectors of them."""
    for kind, wide in (("float", VECTOR), ("i32", f"<{WIDTH} x i32>"), ("i1", MASK)):
        line = re.sub(rf"\b{kind}\b", wide, line)
    line = re.sub(r"\b0x[0-9A-F]{16}\b", lambda m: _every("float", m[0]), line)
    line = re.sub(r"(?<=, )-?\d+$", lambda m: _every("i32", m[0]), line)
    return re.sub(r"@llvm\.(\w+)\.f32", rf"@llvm.\1.v{WIDTH}f32", line)


def _every(kind: str, number: str) -> str:
    return f"<{', '.join([f'{kind} {number}'] * WIDTH)}>"
