from __future__ import annotations

import numpy as np
import scipy.special

from symdnn.ops.nn import dropout as D
from symdnn.ops.random import mrg as M
from symdnn.ops.random import random as R
from symdnn.ops.random import rejection as V
from tests.op_table.record import OpCase, normal, uniform

MASK64 = (1 << 64) - 1
LOW = 0xFFFFFFFF


def slow_philox(counter, key):
    """The paper's rounds on Python integers."""
    c, k = list(counter), [key & LOW, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & LOW, (a >> 32) ^ c[3] ^ k[1], a & LOW]
        k = [(k[0] + 0x9E3779B9) & LOW, (k[1] + 0xBB67AE85) & LOW]
    return c


def word(state, element, width, which=0):
    j = element * width + which
    block = j // 4
    return slow_philox([block & LOW, block >> 32, width, 0], int(state[0]))[j % 4]


def word64(state, element):
    return word(state, element, 2) | word(state, element, 2, 1) << 32


def elements(state, shape):
    size = int(np.prod(shape))
    return [int(state[1]) + i for i in range(size)]


def after(state, n):
    return np.array([state[0], int(state[1]) + n & MASK64], np.uint64)


def cells(state, shape, dtype):
    bits = {"float16": 10, "float32": 23, "float64": 52}[dtype]
    if dtype == "float64":
        w = [word64(state, e) >> 12 for e in elements(state, shape)]
    else:
        w = [word(state, e, 1) >> (32 - bits) for e in elements(state, shape)]
    return np.array([(2 * x + 1) / 2.0 ** (bits + 1) for x in w]).reshape(shape)


def uniforms(shape, dtype):
    return lambda s: (cells(s, shape, dtype), after(s, int(np.prod(shape))))


def normals(shape, dtype):
    def expected(state):
        out = []
        for e in elements(state, shape):
            a = e - e % 2
            if dtype == "float64":
                u, v = ((2 * (word64(state, x) >> 12) + 1) / 2.0**53 for x in (a, a + 1))
            else:
                u, v = (
                    float(np.float32(word(state, x, 1)) * np.float32(2**-32) + np.float32(2**-33))
                    for x in (a, a + 1)
                )
            turn = np.sin if e % 2 else np.cos
            out.append(np.sqrt(-2 * np.log(u)) * turn(2 * np.pi * v))
        return np.array(out).reshape(shape), after(state, len(out))

    return expected


def truncated(state):
    u = cells(state, (7,), "float64")
    low = scipy.special.ndtr(-2)
    return scipy.special.ndtri(low + u * (1 - 2 * low)), after(state, 7)


def bernoulli(state, p):
    p = np.broadcast_to(p, (3, 4))
    bits = [word(state, e, 1) / 2**32 for e in elements(state, (3, 4))]
    return np.array(bits).reshape(3, 4) < p, after(state, 12)


def poisson(state, rate):
    """The least number whose distribution function reaches the uniform, found by counting."""
    out = []
    for u, mean in zip(cells(state, (3, 4), "float64").flat, np.broadcast_to(rate, (3, 4)).flat):
        k, term = 0, np.exp(-mean)
        total = term
        while total < u:
            k += 1
            term *= mean / k
            total += term
        out.append(k)
    return np.array(out).reshape(3, 4), after(state, 12)


def mrg(shape, dtype):
    """L'Ecuyer and Touzin's recurrences on Python integers, a stream for each row of the state."""

    def expected(state):
        rows = [[int(n) for n in row] for row in state]
        out = []
        for i in range(int(np.prod(shape))):
            x1, x2, x3, y1, y2, y3 = rows[i % len(rows)]
            x = ((x2 << 22) + (x3 << 7) + x3) % (2**31 - 1)
            y = ((y1 << 15) + (y3 << 15) + y3) % (2**31 - 21069)
            rows[i % len(rows)] = [x, x1, x2, y, y1, y2]
            z = (x - y) % (2**31 - 1) or 2**31 - 1
            if dtype == "float16":
                out.append(((z % 2**15) + 1) * (511.0 / 2**24))
            else:
                out.append(z / 2.0**31)
        return np.array(out).reshape(shape).astype(dtype), np.array(rows, np.int32)

    return expected


def streams(count):
    """A state of MRG31k3p with small, large and other numbers."""

    def made(rng):
        found = rng.integers(1, 2**31 - 21069, (count, 6)).astype(np.int32)
        found[0] = [1, 0, 0, 2**31 - 21070, 0, 0]
        return found

    return made


def block(state, element, tag, number):
    at = int(state[1]) + element & MASK64
    return slow_philox([at & LOW, at >> 32, tag, number], int(state[0]))


def open_of(low, high):
    return (2 * ((low | high << 32) >> 12) + 1) / 2.0**53


def log_gammas(state, shape):
    """Marsaglia and Tsang's loop, element by element."""
    out = []
    for e, a in enumerate(np.broadcast_to(shape, (3, 4)).flat):
        d = (a + 1 if a < 1 else a) - 1 / 3
        for proposal in range(1, 100):
            w = block(state, e, 0x6A, proposal)
            z = scipy.special.ndtri(open_of(*w[:2]))
            v = (1 + z / np.sqrt(9 * d)) ** 3
            if v > 0 and np.log(open_of(*w[2:])) < z * z / 2 + d - d * v + d * np.log(v):
                break
        first = block(state, e, 0x6A, 0)
        out.append(np.log(d * v) + (np.log(open_of(*first[:2])) / a if a < 1 else 0))
    return np.array(out).reshape(3, 4), after(state, 12)


def angles(state, concentration):
    """Best and Fisher's loop, element by element."""
    out = []
    for e, k in enumerate(np.broadcast_to(concentration, (3, 4)).flat):
        tau = 1 + np.sqrt(1 + 4 * k * k)
        rho = (tau - np.sqrt(2 * tau)) / (2 * k)
        r = (1 + rho * rho) / (2 * rho)
        for proposal in range(1, 100):
            w = block(state, e, 0x76, proposal)
            z, u = np.cos(np.pi * open_of(*w[:2])), (w[2] + 0.5) / 2**32
            f = (1 + r * z) / (r + z)
            c = k * (r - f)
            if c * (2 - c) > u or np.log(c / u) + 1 - c >= 0:
                break
        out.append(np.arccos(f) * (1 if w[3] >> 31 else -1))
    return np.array(out).reshape(3, 4), after(state, 12)


def integers(low, high, shape):
    def expected(state):
        v = [low + (word64(state, e) * (high - low) >> 64) for e in elements(state, shape)]
        return np.array(v).reshape(shape), after(state, len(v))

    return expected


def permutation(state):
    keys = np.array([word64(state, e) for e in elements(state, (3, 5))], object).reshape(3, 5)
    order = [sorted(range(5), key=lambda i, row=row: row[i]) for row in keys]
    return np.array(order), after(state, 15)


def choose(p, u):
    total = 0.0
    for i, q in enumerate(p / p.sum()):
        total += q
        if u < total:
            return i
    return len(p) - 1


def categorical(state, p):
    u = cells(state, (3, 6), "float64")
    return np.array([[choose(q, v) for v in row] for q, row in zip(p, u, strict=True)]), after(
        state, 18
    )


def multinomial(state, p):
    u = cells(state, (3, 6), "float64")
    found = [[choose(q, v) for v in row] for q, row in zip(p, u, strict=True)]
    return np.array([np.bincount(r, minlength=4) for r in found]), after(state, 18)


def subset(state, p):
    race = -np.log(cells(state, (3, 4), "float64")) / p
    return np.array([sorted(range(4), key=lambda i, r=r: r[i])[:2] for r in race]), after(state, 12)


def state(counter=0):
    """A fixed key, any counter: the cases cross block borders."""
    return lambda rng: np.array([int(rng.integers(1, 1 << 62)), counter], np.uint64)


def drop_expected(shape, rate, scale=1.0):
    def expected(s, x):
        n = int(np.prod(shape))
        mask = np.array([word(s, int(s[1]) + i, 1) / 2**32 for i in range(n)]).reshape(shape)
        mask = mask < 1 - np.float64(np.float32(rate))
        return x * mask * scale, mask, after(s, n)

    return expected


def drop(rate, shared=(), scale=True):
    return lambda s, x: D.Dropout(shared, scale)(s, x, np.float32(rate))


def expand(p):
    return p.dimshuffle(0, "x", 1)


CASES = (
    [
        OpCase(
            f"random_uniform_{dtype}_{counter}",
            (R.RandomUniform,),
            lambda s, dtype=dtype: R.random_uniform(s, (3, 5), dtype),
            (state(counter),),
            uniforms((3, 5), dtype),
            grad=False,
            rtol=0,
        )
        for dtype, counter in (
            ("float32", 0),
            ("float32", 3),
            ("float64", 1),
            ("float16", 2),
            ("float32", (1 << 34) + 1),
            ("float64", 1 << 40),
        )
    ]
    + [
        OpCase(
            f"random_normal_{dtype}_{counter}",
            (R.RandomNormal,),
            lambda s, dtype=dtype: R.random_normal(s, (3, 5), dtype),
            (state(counter),),
            normals((3, 5), dtype),
            grad=False,
            rtol=1e-6,
        )
        for dtype, counter in (("float32", 0), ("float32", 3), ("float64", 5), ("float64", 2))
    ]
    + [
        OpCase(
            "random_uniform_scalar",
            (R.RandomUniform,),
            lambda s: R.random_uniform(s, (), "float32"),
            (state(),),
            uniforms((), "float32"),
            grad=False,
        ),
        OpCase(
            "random_uniform_none",
            (R.RandomUniform,),
            lambda s: R.random_uniform(s, (0, 3), "float32"),
            (state(7),),
            lambda s: (np.zeros((0, 3)), s),
            grad=False,
        ),
        OpCase(
            "random_normal_truncated",
            (R.RandomNormal,),
            lambda s: R.random_normal(s, (7,), "float64", True),
            (state(3),),
            truncated,
            grad=False,
        ),
        OpCase(
            "random_bernoulli",
            (R.RandomBernoulli,),
            lambda s, p: R.random_bernoulli(s, p, (3, 4)),
            (state(2), uniform(0, 1, 3, 4)),
            bernoulli,
            grad=False,
        ),
        OpCase(
            "random_bernoulli_row",
            (R.RandomBernoulli,),
            lambda s, p: R.random_bernoulli(s, p, (3, 4), "float32"),
            (state(), uniform(0, 1, 1, 4)),
            bernoulli,
            grad=False,
        ),
        OpCase(
            "random_poisson",
            (R.RandomPoisson,),
            lambda s, p: R.random_poisson(s, p, (3, 4)),
            (state(2), uniform(0.1, 30, 3, 4)),
            poisson,
            grad=False,
            rtol=0,
        ),
        OpCase(
            "random_poisson_row",
            (R.RandomPoisson,),
            lambda s, p: R.random_poisson(s, p * 0, (3, 4), "float32"),
            (state(), uniform(0, 1, 1, 4)),
            lambda s, p: (np.zeros((3, 4)), after(s, 12)),
            grad=False,
        ),
        OpCase(
            "random_log_gamma",
            (V.RandomLogGamma,),
            lambda s, a: V.random_log_gamma(s, a, (3, 4), "float64"),
            (state((1 << 40) - 5), uniform(0.05, 4, 3, 4)),
            log_gammas,
            grad=False,
            rtol=1e-12,
        ),
        OpCase(
            "random_log_gamma_row",
            (V.RandomLogGamma,),
            lambda s, a: V.random_log_gamma(s, a, (3, 4), "float32"),
            (state((1 << 64) - 3), uniform(0.5, 400, 1, 4)),
            log_gammas,
            grad=False,
        ),
        OpCase(
            "random_log_gamma_none",
            (V.RandomLogGamma,),
            lambda s, a: V.random_log_gamma(s, a, (0, 4), "float64"),
            (state(), uniform(0.5, 4, 1, 4)),
            lambda s, a: (np.zeros((0, 4)), s),
            grad=False,
        ),
        OpCase(
            "random_von_mises",
            (V.RandomVonMises,),
            lambda s, k: V.random_von_mises(s, k, (3, 4), "float64"),
            (state(3), uniform(0.05, 20, 3, 4)),
            angles,
            grad=False,
            rtol=1e-12,
        ),
        *(
            OpCase(
                f"mrg_{name}",
                (M.MrgUniform,),
                lambda s, shape=shape, dtype=dtype: M.mrg_uniform(s, shape, dtype),
                (streams(count),),
                mrg(shape, dtype),
                grad=False,
                rtol=2e-7 if dtype == "float32" else 0,
            )
            for name, count, shape, dtype in (
                ("uniform", 3, (5, 4), "float64"),
                ("uniform_float32", 4, (9,), "float32"),
                ("uniform_float16", 7, (3, 1, 2), "float16"),
                ("uniform_none", 2, (0, 3), "float64"),
                ("uniform_whole", 3, (6,), "float64"),
            )
        ),
        OpCase(
            "random_integers",
            (R.RandomIntegers,),
            lambda s: R.random_integers(s, -3, 10, (4, 3)),
            (state(1),),
            integers(-3, 10, (4, 3)),
            grad=False,
        ),
        OpCase(
            "random_integers_wide",
            (R.RandomIntegers,),
            lambda s: R.random_integers(s, -(1 << 62), 1 << 62, (5,)),
            (state(1),),
            integers(-(1 << 62), 1 << 62, (5,)),
            grad=False,
            rtol=0,
        ),
        OpCase(
            "random_permutation",
            (R.RandomPermutation,),
            lambda s: R.random_permutation(s, 5, (3,)),
            (state(1),),
            permutation,
            grad=False,
        ),
        OpCase(
            "random_categorical",
            (R.RandomCategorical,),
            lambda s, p: R.random_categorical(s, expand(p), (3, 6)),
            (state(1), uniform(0.1, 1, 3, 4)),
            categorical,
            grad=False,
        ),
        OpCase(
            "random_multinomial",
            (R.RandomMultinomial,),
            lambda s, p: R.random_multinomial(s, 6, p, (3,)),
            (state(1), uniform(0.1, 1, 3, 4)),
            multinomial,
            grad=False,
        ),
        OpCase(
            "random_subset",
            (R.RandomSubset,),
            lambda s, p: R.random_subset(s, p, 2, (3,)),
            (state(1), uniform(0.1, 1, 3, 4)),
            subset,
            grad=False,
        ),
        OpCase(
            "dropout",
            (D.Dropout, D.DropoutGrad),
            drop(0.25),
            (state(3), normal(3, 4)),
            drop_expected((3, 4), 0.25, 1 / 0.75),
        ),
        OpCase(
            "dropout_maps",
            (D.Dropout,),
            drop(0.5, (2, 3)),
            (state(1), normal(2, 3, 2, 2)),
            drop_expected((2, 3, 1, 1), 0.5, 2.0),
        ),
        OpCase(
            "dropout_unscaled",
            (D.Dropout,),
            drop(0.25, (), False),
            (state(3), normal(3, 4)),
            drop_expected((3, 4), 0.25),
        ),
        OpCase(
            "dropout_none",
            (D.Dropout,),
            drop(0.0),
            (state(3), normal(3, 4)),
            lambda s, x: (x, np.ones(x.shape), after(s, 12)),
        ),
        OpCase(
            "dropout_all",
            (D.Dropout,),
            drop(1.0),
            (state(3), normal(3, 4)),
            lambda s, x: (0 * x, np.zeros(x.shape), after(s, 12)),
        ),
        OpCase(
            "dropout_f16",
            (D.Dropout,),
            drop(0.5),
            (state(3), normal(3, 4, dtype="float16")),
            drop_expected((3, 4), 0.5, 2.0),
            grad=False,
        ),
        OpCase(
            "dropout_grad",
            (D.DropoutGrad,),
            lambda g, m: D.DropoutGrad()(g, m, np.float32(0.5)),
            (normal(3, 4), lambda rng: rng.random((3, 4)) < 0.5),
            lambda g, m: 2 * g * m,
        ),
    ]
)
