"""The special functions that are written on vectors (:mod:`symdnn.cpu.math.lanes_ir`), by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from symdnn.cpu.math.gamma_ir import betaln, lgamma
from symdnn.cpu.math.incomplete_ir import beta_share, gamma_share
from symdnn.cpu.math.lanes_ir import (
    Lane,
    called_on_lanes,
    lane_body,
    lane_variants,
    widened_function,
)
from symdnn.cpu.math.math64_ir import FULL_LINES
from symdnn.cpu.math.math_double_ir import HELPERS
from symdnn.cpu.math.zeta_ir import polygamma, zeta, zeta_of_positive

__all__ = ["IN_LANES", "LANES", "lane_definitions"]

#: The prefix of these functions among the names of helpers.
LANES = "lanes "

_FUNCTIONS: dict[str, tuple[int, Callable[..., Lane]]] = {
    "betaln": (2, betaln),
    "betainc": (3, partial(beta_share, upper=False)),
    "betaincc": (3, partial(beta_share, upper=True)),
    "gammainc": (2, partial(gamma_share, upper=False)),
    "gammaincc": (2, partial(gamma_share, upper=True)),
    "lgamma": (1, lgamma),
    "polygamma": (2, polygamma),
    "zeta": (2, zeta),
    "zeta_of_positive": (2, zeta_of_positive),
}
#: Instructions of scalar programs that have code here.
IN_LANES = frozenset(_FUNCTIONS) - {"zeta_of_positive"}
_SHORT = "_short"


def lane_definitions(names: Iterable[str]) -> list[str]:
    """The IR of the functions ``z_zeta`` and so on, and of those that they call.

    A name that ends in ``_short`` is that of the function for results of float32.
    """
    wanted = sorted(set(names))
    found: dict[str, list[str]] = {}

    def collect(name: str) -> None:
        if name not in found:
            found[name] = _body(name)
            for other in sorted(called_on_lanes(found[name]) - {name}):
                collect(other)

    for name in wanted:
        collect(f"z_{name}")
    lines = [line for body in found.values() for line in body]
    for name in wanted:
        lines += lane_variants(name, _FUNCTIONS[name.removesuffix(_SHORT)][0])
    return lines


def _body(name: str) -> list[str]:
    kind, own = name[:2], name[2:]
    if kind == "f_":
        return widened_function(FULL_LINES[own])
    if kind == "d_":
        return widened_function(HELPERS[name])
    arity, write = _FUNCTIONS[own.removesuffix(_SHORT)]
    return lane_body(own, write, arity, own.endswith(_SHORT))
