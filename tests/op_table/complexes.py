from __future__ import annotations

import numpy as np

from symdnn.ops.elementwise import complexes as C
from tests.op_table.arithmetic import parts, parts_numpy
from tests.op_table.record import OpCase, normal, uniform

X, Y, POSITIVE = normal(2, 3), normal(2, 3), uniform(0.5, 2, 2, 3)


def complex_numbers(rng):
    return rng.standard_normal(4) + 1j * rng.standard_normal(4)


CASES = [
    OpCase("complex", (C.Complex,), lambda a, b: C.complex(a, b) * 1, (X, normal(3)),
           lambda a, b: a + 1j * b, grad=False),
    OpCase("complex64", (C.Complex,), C.complex, (normal(2, dtype="float32"),) * 2,
           lambda a, b: (a + 1j * b).astype("complex64"), grad=False),
    OpCase("real", (C.Real,), C.real, (complex_numbers,), np.real, grad=False),
    OpCase("imag", (C.Imag,), C.imag, (complex_numbers,), np.imag, grad=False),
    OpCase("conj", (C.Conj,), C.conj, (complex_numbers,), np.conj, grad=False),
    OpCase("real_gradient", (C.Real,), parts(lambda z: C.real(z * z)), (X, Y),
           lambda a, b: a * a - b * b),
    OpCase("imag_gradient", (C.Imag,), parts(lambda z: C.imag(z * z)), (X, Y),
           lambda a, b: 2 * a * b),
    OpCase("conj_gradient", (C.Conj,), parts(lambda z: C.conj(z) * z * z), (X, Y),
           parts_numpy(lambda z: abs(z) ** 2 * z)),
    OpCase("angle", (C.Angle,), parts(C.angle), (POSITIVE, Y), lambda a, b: np.arctan2(b, a)),
    OpCase("angle_of_real", (C.Angle,), C.angle, (X,), np.angle, grad=False),
    OpCase("imag_of_real", (C.Imag,), C.imag, (X,), np.imag, grad=False),
    OpCase("complex_from_polar", (C.Complex,),
           lambda r, t: C.real(C.complex_from_polar(r, t) * (1 + 2j)), (POSITIVE, Y),
           lambda r, t: np.real(r * np.exp(1j * t) * (1 + 2j))),
]  # fmt: skip
