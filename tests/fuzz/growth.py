"""Growing a program step by step: each step is built, and evaluated with rounding noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.errors import SymdnnError
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from tests.fuzz.noise import MOST, RUNS, Numbers, Unusable
from tests.fuzz.program import Input, Program, Ref, Step, function_of, pick
from tests.fuzz.values import SIZES, draw_dtype, draw_values, kind, least, unit, wide

FACTOR = 8.0


@dataclass(frozen=True, eq=False)
class Term:
    """One value of a program: where it is, its variable, and its value in each run."""

    ref: Ref
    v: Variable
    values: tuple[Any, ...]

    @property
    def base(self) -> Any:
        return self.values[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.base)  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> str:
        return self.v.type.dtype  # type: ignore[no-any-return]

    @property
    def kind(self) -> str:
        return kind(self.dtype)

    def tolerance(self) -> Any:
        """How far a right result may be from the exact run's."""
        noise = np.zeros(self.shape)
        for v in self.values[1:]:
            with np.errstate(all="ignore"):
                noise = np.maximum(noise, np.abs(np.subtract(v, self.base, dtype="c16")))
        u = unit(self.dtype)
        size = np.abs(wide(self.base)) if u else 0.0
        lost = noise > 0.1 * np.maximum(size, 1)  # rounding alone decides such an element
        return np.where(lost, np.inf, FACTOR * noise + 4 * u * size + 2 * least(self.dtype))


@dataclass
class Tally:
    """How often each function was taken, refused by symdnn, or could not be judged."""

    taken: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unusable: Counter[str] = field(default_factory=Counter)


class RawError(Exception):
    """Building a step raised something else than an error of symdnn."""


class Growth:
    """A program that grows, with choices from one generator."""

    def __init__(
        self, rng: np.random.Generator, sizes: Sequence[int] = SIZES,
        dtypes: Sequence[str] | None = None, tally: Tally | None = None,
        values: Any = draw_values,
    ) -> None:  # fmt: skip
        self.values = values
        self.rng, self.tally = rng, tally or Tally()
        self.dtypes = dtypes
        self.sizes = [int(n) for n in rng.choice(sizes, 3)]
        self.items: list[Input | Step] = []
        self.symbols: list[Any] = []
        self.terms: list[Term] = []
        self.numbers = Numbers(rng)

    # -- choices ------------------------------------------------------------------------------

    def of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def integer(self, low: int, high: int) -> int:
        """In ``low .. high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def number(self) -> float | int:
        """A literal that every float dtype holds exactly."""
        return self.of([0.5, 2, -1, 1.5, 3, 1, -0.25, 4.0])  # type: ignore[no-any-return]

    def axis(self, t: Term) -> int:
        a = self.integer(0, t.ndim - 1)
        return a - t.ndim if self.chance(0.3) else a

    def axes(self, t: Term) -> Any:
        """None, one axis, or several in any order."""
        if t.ndim == 0 or self.chance(0.25):
            return None
        if self.chance(0.55):
            return self.axis(t)
        some = self.rng.permutation(t.ndim)[: self.integer(1, t.ndim)]
        return tuple(int(a) - (t.ndim if self.chance(0.2) else 0) for a in some)

    def order(self, n: int) -> list[int]:
        return [int(k) for k in self.rng.permutation(n)]

    # -- operands -----------------------------------------------------------------------------

    def fresh(
        self, shape: Sequence[int], dtype: str, value: Any = None, known: float = 0.4
    ) -> Term:
        """A new input."""
        if value is None:
            if np.prod(shape, dtype=float) > MOST:
                raise Unusable("too large")
            value = self.values(self.rng, shape, dtype)
        static = tuple(
            n if self.chance(0.75 if n == 1 else known) else None for n in np.shape(value)
        )
        item = Input(np.asarray(value), static)
        self.items.append(item)
        v = item.type(f"v{len(self.items) - 1}")
        self.symbols.append(v)
        values = self.numbers.add_input(item)
        self.terms.append(Term(Ref(len(self.items) - 1), v, tuple(values * (RUNS + 1))))
        return self.terms[-1]

    def _among(self, kinds: str) -> list[str]:
        """The dtypes of these kinds: of this program, or all if it has none of them."""
        found = [d for d in self.dtypes or _ALL if kind(d) in kinds]
        return found or [d for d in _ALL if kind(d) in kinds]

    def new(self, ndim: int | None = None, kinds: str = "biufc", low: int = 0) -> Term:
        """A new input of sizes of this program."""
        n = int(self.rng.choice([0, 1, 2, 2, 3, 4])) if ndim is None else ndim
        among = self._among(kinds)
        shape = [max(self.of([*self.sizes, 1]), low) for _ in range(n)]
        return self.fresh(shape, draw_dtype(self.rng, among))

    def term(
        self, ndim: int | tuple[int, ...] | None = None, kinds: str = "biufc", low: int = 0,
        where: Callable[[Term], bool] = lambda t: True,
    ) -> Term:  # fmt: skip
        """A value of the program of this kind, or a new one."""
        wanted = (ndim,) if isinstance(ndim, int) else ndim
        found = [
            t for t in self.terms
            if (wanted is None or t.ndim in wanted) and t.kind in kinds
            and (not low or min(t.shape, default=low) >= low) and where(t)
        ]  # fmt: skip
        if found and not self.chance(0.1):
            late = self.rng.random(2).max()  # the later ones more often
            return found[int(late * len(found))]
        for _ in range(8):
            t = self.new(self.of(wanted) if wanted else None, kinds, low)
            if where(t):
                return t
        raise Unusable("no operand")

    def partner(self, t: Term, kinds: str = "biufc") -> Any:
        """A term that broadcasts with ``t``."""

        def fits(o: Term) -> bool:
            return _broadcasts(t, o)

        found = [o for o in self.terms if o.kind in kinds and fits(o)]
        if found and self.chance(0.75):
            return self.of(found)
        shape = [1 if self.chance(0.25) else n for n in t.shape]
        if self.chance(0.15) and shape:
            shape = shape[self.integer(1, len(shape)) :]
        among = self._among(kinds)
        o = self.fresh(shape, t.dtype if self.chance(0.6) else draw_dtype(self.rng, among))
        if not fits(o):
            raise Unusable("sizes do not broadcast")
        return o

    # -- growing ------------------------------------------------------------------------------

    def take(self, step: Step) -> list[Term]:
        """Add a step. Raises :class:`Unusable`, or :class:`RawError` for a bug."""
        s = step.mapped(lambda r: pick(self.symbols, r))
        try:
            built = function_of(step.path)(*s.args, **s.kwargs)
        except (SymdnnError, NotImplementedError) as error:
            self.tally.refused[step.path] += 1
            raise Unusable(f"refused: {error}") from error
        except Exception as error:
            raise RawError(f"{type(error).__name__}: {error}") from error
        single = not isinstance(built, list | tuple)
        outs = [built] if single else list(built)
        outs = [o for o in outs if isinstance(o, Variable) and isinstance(o.type, TensorType)]
        if not outs:
            raise Unusable("no tensor")
        self._number(step, outs, single)
        self.items.append(step)
        self.symbols.append(built if single else outs)
        at = len(self.items) - 1
        new = []
        for k, o in enumerate(outs):
            ref = Ref(at, None if single else k)
            values = tuple(pick(r, ref) for r in self.numbers.results)
            new.append(Term(ref, o, values))
        self.tally.taken[step.path] += 1
        self.terms += new
        return new

    def _number(self, step: Step, outs: Sequence[Variable], single: bool) -> None:
        known = {(t.ref.at, t.ref.item): t.v for t in self.terms}
        try:
            self.numbers.step(step, outs, single, known)
        except Unusable:
            self.tally.unusable[step.path] += 1
            raise

    def program(self, outputs: Sequence[Term]) -> Program:
        return Program(tuple(self.items), tuple(t.ref for t in outputs))

    def sinks(self) -> list[Term]:
        """Values of steps that no step reads."""
        read = {(r.at, r.item) for i in self.items if isinstance(i, Step) for r in i.refs()}
        made = [t for t in self.terms if isinstance(self.items[t.ref.at], Step)]
        return [t for t in made if (t.ref.at, t.ref.item) not in read]


def _broadcasts(a: Term, b: Term) -> bool:
    """By symdnn's rule: only a dimension that is statically 1 broadcasts."""
    pairs = zip(reversed(list(zip(a.shape, a.v.type.shape))),
                reversed(list(zip(b.shape, b.v.type.shape))))  # fmt: skip
    return all(m == n or 1 in (s, t) for (m, s), (n, t) in pairs)


def check_broadcast(terms: Sequence[Term]) -> None:
    """Raise :class:`Unusable` unless these broadcast with one another."""
    if not all(_broadcasts(a, b) for a in terms for b in terms):
        raise Unusable("sizes do not broadcast")


def replay(
    program: Program, symbols: list[Any], rng: np.random.Generator, runs: int
) -> dict[tuple[int, int | None], tuple[Any, ...]]:
    """The values of all items of a program that exists, with ``runs`` perturbed runs."""
    numbers = Numbers(rng, runs)
    known: dict[Any, Any] = {}
    for k, item in enumerate(program.items):
        made = symbols[k]
        outs = list(made) if isinstance(made, list | tuple) else [made]
        for j, o in enumerate(outs):
            known[(k, j if isinstance(made, list | tuple) else None)] = o
        if isinstance(item, Input):
            numbers.add_input(item)
        else:
            numbers.step(item, outs, not isinstance(made, list | tuple), known)
    refs = [Ref(*key) for key in known]
    return {(r.at, r.item): tuple(pick(x, r) for x in numbers.results) for r in refs}


_ALL = tuple(T.all_dtypes) if "bfloat16" in T.all_dtypes else (*T.all_dtypes, "bfloat16")
