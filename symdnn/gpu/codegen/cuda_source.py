"""CUDA C of scalar programs: the body of an inner loop."""

from __future__ import annotations

from symdnn.gpu.codegen.device_source import CTYPES as REAL_CTYPES
from symdnn.gpu.codegen.device_source import text_of
from symdnn.graph.type import TensorType
from symdnn.ops.core.scalar import REFERENCE_ONLY, Instruction, ScalarProgram, number_of_text

__all__ = [
    "CTYPES", "constant_text", "iterates", "library", "print_problem", "scalar_function",
]  # fmt: skip

#: The C type of each dtype that elementwise kernels compute with.
CTYPES = {**REAL_CTYPES, "complex64": "c64", "complex128": "c128"}

#: Instructions that are in special.cuh, and in incomplete.cuh, which needs it (as bessel.cuh does).
_SPECIAL = frozenset(
    {"digamma", "trigamma", "polygamma", "gammainc", "gammaincc", "zeta", "i0e", "i1e"}
)
_INCOMPLETE = frozenset(
    {"gamma_draw_slope", "betaln", "betainc", "betaincc", "betainc_slope_a", "betainc_slope_b",
     "owens_t", "von_mises_draw_slope"}
)  # fmt: skip
#: Those that are in bessel.cuh, for real orders.
_BESSEL = frozenset({"jv", "iv"})


def print_problem(program: ScalarProgram) -> str | None:
    """Why a program cannot be printed as CUDA C; None if it can."""
    if missing := program.names & REFERENCE_ONLY:
        return "CUDA has no " + ", ".join(sorted(missing))
    return None


def iterates(program: ScalarProgram) -> bool:
    """Whether it calls functions that iterate: they take longer than its operands' bytes."""
    return not program.names.isdisjoint(_SPECIAL | _INCOMPLETE | _BESSEL)


def library(*programs: ScalarProgram) -> str:
    """The library sources (``.cuh``) that these programs need."""
    incomplete = any(p.names & _INCOMPLETE for p in programs)
    bessel = any(p.names & _BESSEL for p in programs)
    special = incomplete or bessel or any(p.names & _SPECIAL for p in programs)
    dtypes = {d for p in programs for d in (*p.inputs, *p.output_dtypes)}
    files = ["common.cuh", "scalar.cuh"] + ["special.cuh"] * special
    files += ["incomplete.cuh"] * incomplete + ["bessel.cuh"] * bessel
    files += ["complex.cuh"] * bool(dtypes - REAL_CTYPES.keys())
    return "".join(map(text_of, files))


def scalar_function(program: ScalarProgram, name: str, rounded: bool = False) -> str:
    """A device function ``name(inputs..., results by reference...)``.

    What is ``rounded`` to 16 bits in the end has exponentials of a few instructions.
    """
    given = [f"{CTYPES[d]} v{i}" for i, d in enumerate(program.inputs)]
    results = [f"{CTYPES[d]}& r{i}" for i, d in enumerate(program.output_dtypes)]
    lines = [f"INLINE void {name}({', '.join(given + results)}) {{"]
    for i, step in enumerate(program.body, len(program.inputs)):
        name_of = "share" if _is_logistic_division(program, step) else step.name
        if rounded and (name_of, step.dtype) == ("exp", "float32"):
            name_of = "short_exp"
        lines.append(f"  const {CTYPES[step.dtype]} v{i} = {_expression(step, name_of)};")
    lines += [f"  r{i} = v{v};" for i, v in enumerate(program.outputs)]
    return "\n".join([*lines, "}\n"])


def _is_logistic_division(program: ScalarProgram, step: Instruction) -> bool:
    """Whether ``step`` is the division of a logistic function.

    Its denominator is e + 1 with e = exp(-|x|), and its numerator is e or 1, or a select of them.
    """
    if step.name != "div" or step.dtype not in ("float32", "float64"):
        return False

    def at(number: int) -> Instruction | None:
        k = number - len(program.inputs)
        return program.body[k] if k >= 0 else None

    def is_one(number: int) -> bool:
        s = at(number)
        return s is not None and s.name == "const" and number_of_text(s.value, s.dtype) == 1

    def is_exp_neg_abs(number: int) -> bool:
        """Whether it is ``exp(-abs(x))``."""
        chain: list[str] = []
        s = at(number)
        while s is not None and len(chain) < 3:
            chain.append(s.name)
            s = at(s.args[0]) if s.args else None
        return chain == ["exp", "neg", "abs"]

    above, below = (at(a) for a in step.args)
    if below is None or below.name != "add" or above is None:
        return False
    parts = [a for a in below.args if not is_one(a)]
    if len(parts) != 1 or not is_exp_neg_abs(parts[0]):
        return False
    choices = above.args[1:] if above.name == "select" else (step.args[0],)
    return all(c == parts[0] or is_one(c) for c in choices)


def _expression(step: Instruction, name: str) -> str:
    if step.name == "const":
        return constant_text(step.value, step.dtype)
    args = ", ".join(f"v{a}" for a in step.args)
    if step.name == "cast":
        return f"convert<{CTYPES[step.dtype]}>({args})"
    if step.name == "bitcast":
        return f"{'__float_as_int' if step.dtype == 'int32' else '__int_as_float'}({args})"
    return f"s_{name}({args})"


def constant_text(text: str, dtype: str) -> str:
    """A constant as a C literal, exactly."""
    if TensorType(dtype).is_discrete:
        return _integer_text(int(text), dtype)
    number = float(number_of_text(text, dtype))
    wide = dtype == "float64"
    if number != number:
        literal = "NAN_d" if wide else "NAN_f"
    elif number in (float("inf"), float("-inf")):
        literal = ("-" if number < 0 else "") + ("INF_d" if wide else "INF_f")
    else:
        literal = number.hex() + ("" if wide else "f")
    return f"convert<{CTYPES[dtype]}>({literal})" if dtype in ("float16", "bfloat16") else literal


def _integer_text(number: int, dtype: str) -> str:
    if dtype == "bool":
        return "true" if number else "false"
    if dtype == "uint64":
        return f"{number}ull"
    if number == -(2**63):
        return "(-9223372036854775807ll - 1)"
    return f"({CTYPES[dtype]}){number}ll"
