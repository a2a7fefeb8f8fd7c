"""All formulas by name, and what scalar programs compute by them.

``s_...`` are of float32, ``f_...`` of float64, ``d_...`` of float64 with the digits of float32, and
``z_...`` of float64 and written on vectors (:mod:`symdnn.cpu.math.lanes_ir`). Those of float32 call
``z_..._short``; they take as many numbers as a vector of float32 has, so two vectors of float64 are
computed side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from symdnn.cpu.math.bessel_orders_ir import bessel, modified_bessel
from symdnn.cpu.math.erfcx_ir import erfcx
from symdnn.cpu.math.gamma_ir import betaln, lgamma, tgamma
from symdnn.cpu.math.incomplete_ir import beta_share, gamma_share
from symdnn.cpu.math.inverse_erf_ir import erfcinv, erfinv, ndtri
from symdnn.cpu.math.lanes_ir import Formula, Lane, LaneFormula, in_double
from symdnn.cpu.math.math32_ir import SINGLE
from symdnn.cpu.math.math64_ir import FULL
from symdnn.cpu.math.math_arcs_ir import ARCS
from symdnn.cpu.math.math_bessel_ir import BESSEL
from symdnn.cpu.math.math_double_ir import DOUBLE
from symdnn.cpu.math.math_gelu_erfc_ir import GELU_ERFC
from symdnn.cpu.math.math_inverse_trig_ir import INVERSE_TRIG
from symdnn.cpu.math.math_power_ir import POWER
from symdnn.cpu.math.math_rare_ir import Rare
from symdnn.cpu.math.math_special64_ir import SPECIAL64
from symdnn.cpu.math.math_trig_ir import TRIGONOMETRIC
from symdnn.cpu.math.zeta_ir import polygamma, zeta, zeta_of_positive

_LANES: dict[str, tuple[int, Callable[..., Lane]]] = {
    "betaln": (2, betaln),
    "betainc": (3, partial(beta_share, upper=False)),
    "betaincc": (3, partial(beta_share, upper=True)),
    "erfcinv": (1, erfcinv),
    "erfcx": (1, erfcx),
    "erfinv": (1, erfinv),
    "gammainc": (2, partial(gamma_share, upper=False)),
    "gammaincc": (2, partial(gamma_share, upper=True)),
    "lgamma": (1, lgamma),
    "iv": (2, modified_bessel),
    "jv": (2, bessel),
    "ndtri": (1, ndtri),
    "polygamma": (2, polygamma),
    "tgamma": (1, tgamma),
    "zeta": (2, zeta),
    "zeta_of_positive": (2, zeta_of_positive),
}
FORMULAS: dict[str, Formula | Rare] = {
    formula.name: formula
    for formula in (
        *SINGLE, *ARCS, *GELU_ERFC, *DOUBLE, *FULL, *POWER, *BESSEL, *SPECIAL64,
        *TRIGONOMETRIC, *INVERSE_TRIG,
        *(
            LaneFormula(f"z_{name}{'_short' * short}", write, arity, short)
            for name, (arity, write) in _LANES.items() for short in (False, True)
        ),
        *(
            LaneFormula(f"s_{name}", in_double(write), arity, t="float")
            for name, (arity, write) in _LANES.items()
        ),
    )
}  # fmt: skip

_PARTS = {
    "iv_0",
    "iv_1",
    "zeta_of_positive",
    "exp_of_normal",
    "atan_of",
    "half_exp",
    "expm1_within",
}
_PARTS |= {"erfc_of_size", *(n[2:] for n in FORMULAS if n.endswith(("_rare", "_whole")))}


def _of(prefix: str) -> frozenset[str]:
    return frozenset(n[2:] for n in FORMULAS if n.startswith(prefix)) - _PARTS


#: Instructions of scalar programs that have formulas: of float32, of float64, and of both.
IN_FLOAT, IN_FULL = _of("s_"), _of("f_")
IN_LANES = frozenset(_LANES) - _PARTS
