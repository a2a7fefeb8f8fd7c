"""LLVM IR of random numbers: Philox4x32-10, whose blocks of four words are vectorised.

The numbers are those of :mod:`symdnn.ops.random.rng_philox`. A kernel's block of words: threads, 1,
the number of elements, then array objects: the state, the next state, the values, the parameter.
Elements are made in chunks. The random words of a chunk go to a buffer first, from the Philox block
of the chunk's first element on; then its values are computed from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.builder import ROWS, FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, METADATA, THREADS, data_of, word
from symdnn.cpu.ir.math_ir import declarations, definitions
from symdnn.cpu.ir.scalar_ir import VALUES, literal, load_as, store_as
from symdnn.cpu.math.lanes_ir import ROUND, Lane, Lanes, number
from symdnn.cpu.math.math_inverse_trig_ir import COS, SIN
from symdnn.cpu.math.math_trig_ir import sine_and_cosine

#: Philox blocks of a chunk, and elements made from them: up to three words of the first block
#: belong to the previous chunk.
_CHUNK_BLOCKS = 64
_CHUNK_ELEMENTS = 4 * _CHUNK_BLOCKS - 4
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF
_OBJECTS = ("state", "next", "y", "p")


def draw_ir(kind: str, dtype: str, parameter: str = "") -> str:
    """The module of ``kernel`` for a kind of random numbers.

    Kinds are ``uniform`` and ``normal``, of float32, ``bernoulli``, whose parameter is the
    probability of 1, and ``mask``, whose parameter is the probability of 0. ``parameter`` is that
    dtype.
    """
    draws, helpers = _Draws(kind, dtype, parameter), {"d_log"} if kind == "normal" else set()
    text = draws.text()
    lines = [
        *sorted(draws.declared | declarations(helpers)),
        *definitions(helpers),
        *(line.replace("@kernel(", "@parts(") for line in THREADS),
        *text,
        *_kernel(),
        *METADATA,
    ]
    return "\n".join(lines) + "\n"


def philox_keys(key: Lane) -> list[list[Lane]]:
    """The two keys of each round; numbers of 32 bits are in lanes of 64."""
    halves = key, key >> 32
    return [
        [(half + (weyl * r & _LOW)) & _LOW for half, weyl in zip(halves, _WEYL)]
        for r in range(_ROUNDS)
    ]


def philox_words(block: Lane, keys: Sequence[Sequence[Lane]]) -> list[Lane]:
    """The four random words of Philox blocks of these numbers."""
    one, zero = (Lane(block.k, block.k.of(n, "i64"), "i64") for n in (1, 0))
    now = [block & _LOW, block >> 32, one, zero]
    for pair in keys:
        products = [c * factor for c, factor in zip(now[::2], _MULTIPLIERS)]
        a, b = ((p >> 32) ^ c ^ key for p, c, key in zip(products[::-1], now[1::2], pair))
        now = [a, products[1] & _LOW, b, products[0] & _LOW]
    return [word_.cast("i32", "trunc") for word_ in now]


class _State(FunctionBuilder):
    """Builds a function that reads the state."""

    def at(self, base: str, i: str | int, kind: str = "i64") -> str:
        """The address of element ``i``."""
        return self.new(f"getelementptr {kind}, ptr {base}, i64 {i}")

    def key_and_counter(self) -> list[str]:
        """Load both."""
        return [self.new(f"load i64, ptr {at}") for at in ("%state", self.at("%state", 1))]


class _Draws(_State):
    """Builds the function ``rows``: chunks of a thread's elements."""

    def __init__(self, kind: str, dtype: str, parameter: str) -> None:
        super().__init__()
        self.draw, self.dtype, self.parameter = kind, dtype, parameter

    def lane(self, a: str) -> Lane:
        """An integer of 64 bits for formulas."""
        return Lane(Lanes(append=self.new), a, "i64")

    def op(self, what: str, kind: str, a: str, b: str | int) -> str:
        """An instruction of two numbers of a type."""
        return self.new(f"{what} {kind} {a}, {b}")

    def cast(self, how: str, a: str, source: str, target: str) -> str:
        """A conversion."""
        return self.new(f"{how} {source} {a} to {target}")

    def text(self) -> list[str]:
        """The lines of the function."""
        self.put(ROWS, "entry:", f"%buffer = alloca [{4 * _CHUNK_BLOCKS} x i32], align 64")
        self.put(f"%values = alloca [{4 * _CHUNK_BLOCKS} x float], align 64")
        for place, name in enumerate(_OBJECTS[: 4 if self.parameter else 3], 3):
            self.put(*data_of(f"%{name}", place))
        key, counter = self.key_and_counter()
        keys = philox_keys(self.lane(key))
        limit = self._limit() if self.parameter else ""
        with self.each("chunk", "%i0", "%i1", step=_CHUNK_ELEMENTS) as i:
            skip = self._words(i, counter, keys)
            if self.draw == "normal":
                with self.each("pair", 0, str(2 * _CHUNK_BLOCKS), parallel=True) as k:
                    self._normal_pair(k)
            count = self.least(str(_CHUNK_ELEMENTS), self.minus("%i1", i))
            with self.each("element", 0, count, parallel=True) as e:
                value = self._value(self.new(f"add nuw nsw i64 {skip}, {e}"), limit)
                memory = "i8" if self.dtype == "bool" else VALUES[self.dtype]
                place_ = self.at("%y", self.new(f"add nuw nsw i64 {i}, {e}"), memory)
                self.put(*store_as(self.dtype, value, place_, ACCESS))
        self.put("ret void", "}")
        return self.lines

    def _limit(self) -> str:
        """The number below which words give 1."""
        self.put(*load_as(self.parameter, "%p0", "%p"))
        p = "%p0"
        if VALUES[self.parameter] != "double":
            p = self.cast("fpext", p, VALUES[self.parameter], "double")
        if self.draw == "mask":
            p = self.op("fsub", "double", number(1.0), p)
        return self.op("fmul", "double", p, number(2.0**32))

    def _words(self, i: str, counter: str, keys: Sequence[Sequence[Lane]]) -> str:
        """Make the random words of a chunk; returns the index of its first word."""
        # The number of a Philox block is computed so that it does not wrap where an element's does.
        j = self.plus(self.op("and", "i64", counter, 3), i)
        first = self.plus(self.op("lshr", "i64", counter, 2), self.op("lshr", "i64", j, 2))
        with self.each("block", 0, str(_CHUNK_BLOCKS), parallel=True) as b:
            words = philox_words(self.lane(self.plus(first, b)), keys)
            to = self.op("shl", "i64", b, 2)
            for place, word_ in enumerate(words):
                at = self.at("%buffer", self.plus(to, place), "i32")
                self.put(f"store i32 {word_.name}, ptr {at}, align 4{ACCESS}")
        return self.op("and", "i64", j, 3)

    def _normal_pair(self, k: str) -> None:
        """Turn a pair (u, v) of the buffer into normal numbers, by Box and Muller in float64.

        The angle is 4 v quarter turns, reduced by the nearest integer.
        """
        places = [self.op("shl", "i64", k, 1)]
        places.append(self.op("or", "i64", places[0], 1))
        m = Lanes(append=self.new)
        m.declared = self.declared
        u, v = (Lane(m, self._midpoint(at)) for at in places)
        radius = m.intrinsic("sqrt", m.call("d_log", u) * -2.0)
        turns = v * 4.0
        nearest = turns + ROUND["double"]
        quarter = nearest.cast("i64")
        r = (turns - (nearest - ROUND["double"])) * 1.5707963267948966
        sin, cos = sine_and_cosine(m, r, SIN, COS)
        odd = m.test("ne", quarter & 1, 0)
        # The cosine is negative in quarters 1 and 2, the sine in 2 and 3.
        signs = (odd.where(sin, cos), quarter + 1), (odd.where(cos, sin), quarter)
        for (value, source), at in zip(signs, places):
            value = m.test("ne", source & 2, 0).where(-value, value)
            narrow = (value * radius).cast("float", "fptrunc").name
            self.put(
                f"store float {narrow}, ptr {self.at('%values', at, 'float')}, align 4{ACCESS}"
            )

    def _midpoint(self, at: str) -> str:
        """A word of the buffer as a number in (0, 1)."""
        word_ = self._load("i32", "%buffer", at)
        share = self.op(
            "fmul", "float", self.cast("uitofp", word_, "i32", "float"), number(2.0**-32)
        )
        return self.cast(
            "fpext", self.op("fadd", "float", share, number(2.0**-33)), "float", "double"
        )

    def _load(self, kind: str, base: str, i: str) -> str:
        return self.new(f"load {kind}, ptr {self.at(base, i, kind)}, align 4{ACCESS}")

    def _value(self, at: str, limit: str) -> str:
        """The number that word ``at`` of the buffer gives."""
        if self.draw == "normal":
            return self._load("float", "%values", at)
        found = self._load("i32", "%buffer", at)
        if self.draw == "uniform":  # the midpoint of one of 2^23 equal cells of (0, 1)
            cell = self.cast("uitofp", self.op("lshr", "i32", found, 9), "i32", "float")
            middle = self.op(
                "fadd", "float", self.op("fmul", "float", cell, number(2.0)), number(1.0)
            )
            return self.op("fmul", "float", middle, number(2.0**-24))
        below = self.op("fcmp olt", "double", self.cast("uitofp", found, "i32", "double"), limit)
        if self.dtype == "bool":
            return below
        zero, one = (f"{VALUES[self.dtype]} {literal(text, self.dtype)}" for text in "01")
        return self.new(f"select i1 {below}, {one}, {zero}")


def _kernel() -> list[str]:
    """The function ``kernel``: all elements, then the next state, which may overwrite the state."""
    s = _State()
    s.put("define void @kernel(ptr %w) #0 {", "entry:", "call void @parts(ptr %w)")
    s.put(*word("%n", 2), *data_of("%state", 3), *data_of("%next", 4))
    key, counter = s.key_and_counter()
    after, to = s.plus(counter, "%n"), s.at("%next", 1)
    s.put(f"store i64 {key}, ptr %next", f"store i64 {after}, ptr {to}", "ret void", "}")
    return s.lines
