"""Einstein summation, which builds matrix products.

The order of contractions is opt_einsum's; each pairwise step becomes a
:class:`~symdnn.ops.linalg.dot.Dot` or :class:`~symdnn.ops.linalg.dot.BatchedDot` between views, or
a multiplication and a sum. The gradient is that of those ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.operators import operator
from symdnn.graph.variable import Variable
from symdnn.ops.linalg.dot import _batched_contract, _matched, factors, tensordot

#: Letters in the order of their codes, which is that of the dimensions of an implicit output.
_LETTERS = ascii_uppercase + ascii_lowercase

# The size assumed for an unknown dimension when the order of contractions is chosen.
_ASSUMED_SIZE = 64


@dataclass(frozen=True)
class _Term:
    """A variable and the letter of each of its dimensions."""

    v: Variable
    letters: str

    def moved(self, letters: Iterable[str]) -> Variable:
        """The variable with its dimensions in the order of ``letters``; absent ones are size 1."""
        at = self.letters.index
        return self.v.dimshuffle([at(c) if c in self.letters else "x" for c in letters])

    def summed_to(self, kept: Iterable[str]) -> _Term:
        """Summed over the letters that are not in ``kept``."""
        wanted = set(kept)
        axes = [i for i, c in enumerate(self.letters) if c not in wanted]
        if not axes:
            return self
        # The sum keeps the dtype of ints: a product of int32 matrices is int32.
        total = self.v.sum(axis=axes, dtype=self.v.type.dtype)
        return _Term(total, "".join(c for c in self.letters if c in wanted))


def einsum(subscripts: Any, *operands: Any, optimize: Any = "auto") -> Variable:
    """Sum of products by index letters: ``einsum("bij,bjk->bik", x, y)``.

    Takes NumPy's notation: ``...``, letters repeated within an operand (a diagonal), an output
    left implicit; several operands may be one list. Also NumPy's other form, in which numbers of
    letters follow each operand: ``einsum(x, [0, 1], y, [1, 2], [0, 2])``. ``optimize`` is
    opt_einsum's path argument (``False``: left to right). The dtype is the upcast of the operands'.
    Dimensions of static size 1 broadcast.

    Raises :class:`~symdnn.errors.TypeMismatch` for subscripts that do not fit the operands,
    :class:`~symdnn.errors.ShapeMismatch` for sizes of one letter that differ.
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _lettered([subscripts, *operands])
    if len(operands) == 1 and isinstance(operands[0], list | tuple) and "," in subscripts:
        operands = tuple(operands[0])
    if not operands:
        raise TypeMismatch("einsum", "at least one operand", "none")
    variables = factors("einsum", *operands)
    inputs, output = _parse(subscripts, variables)
    terms = [_diagonal(_Term(v, s)) for v, s in zip(variables, inputs, strict=True)]
    sizes = _sizes(subscripts, terms)
    terms = [_without_ones(t, sizes) for t in terms]
    for positions in _path(terms, output, sizes, optimize):
        chosen = [terms[i] for i in sorted(positions)]
        terms = [t for i, t in enumerate(terms) if i not in positions]
        kept = set(output).union(*(t.letters for t in terms))
        terms.append(_contract(chosen, kept))
    (result,) = terms
    return result.summed_to(output).moved(output)


def _lettered(parts: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The subscripts and the operands of ``x, [0, 1], y, [1, 2], [0, 2]``."""
    ends = len(parts) // 2 * 2
    lists = [_letters(numbers) for numbers in parts[1:ends:2]]
    output = [f"->{_letters(n)}" for n in parts[ends:]]
    return ",".join(lists) + "".join(output), tuple(parts[:ends:2])


def _letters(numbers: Any) -> str:
    if isinstance(numbers, list | tuple):
        with suppress(TypeError, IndexError):
            letters = ["..." if n is Ellipsis else _LETTERS[index(n)] for n in numbers]
            if all(n is Ellipsis or n >= 0 for n in numbers):
                return "".join(letters)
    raise TypeMismatch(
        "einsum", f"subscripts, or after each operand a list of numbers below {len(_LETTERS)}",
        f"{type(numbers).__name__} {numbers}",
    )  # fmt: skip


def _parse(subscripts: str, variables: Sequence[Variable]) -> tuple[list[str], str]:
    """Letters of each operand and of the result, ``...`` spelled out."""
    from opt_einsum.parser import parse_einsum_input

    shapes = [(2,) * v.type.ndim for v in variables]
    try:
        left, output, _ = parse_einsum_input([subscripts, *shapes], shapes=True)
        inputs = left.split(",")
        fits = len(inputs) == len(variables) and all(
            len(s) == v.type.ndim for s, v in zip(inputs, variables, strict=True)
        )
    except (ValueError, KeyError, IndexError) as error:
        raise TypeMismatch(f"einsum({subscripts!r})", "subscripts", str(error)) from error
    if not fits or len(set(output)) != len(output):
        raise TypeMismatch(
            f"einsum({subscripts!r})", "one letter for each dimension of each operand",
            [v.type for v in variables],
        )  # fmt: skip
    return inputs, output


def _diagonal(term: _Term) -> _Term:
    """The diagonal over a letter that occurs twice in one operand."""
    for c in dict.fromkeys(term.letters):
        while term.letters.count(c) > 1:
            first = term.letters.index(c)
            second = term.letters.index(c, first + 1)
            rest = "".join(x for i, x in enumerate(term.letters) if i not in (first, second))
            term = _Term(operator("diagonal")(term.v, 0, first, second), rest + c)
    return term


def _sizes(subscripts: str, terms: Sequence[_Term]) -> dict[str, int | None]:
    """The static size of each letter; 1 only where every operand has 1."""
    sizes: dict[str, int | None] = {}
    for t in terms:
        for c, n in zip(t.letters, t.v.type.shape, strict=True):
            old = sizes.setdefault(c, n)
            if old is None or old == 1:
                sizes[c] = n if n != 1 else old
            elif n not in (None, 1, old):
                raise ShapeMismatch(
                    f"einsum({subscripts!r})", f"one size for {c!r}", [str(x.v.type) for x in terms]
                )
    return sizes


def _without_ones(term: _Term, sizes: dict[str, int | None]) -> _Term:
    """``term`` without the dimensions of static size 1 along which it is broadcast."""
    kept = "".join(
        c for c, n in zip(term.letters, term.v.type.shape, strict=True) if n != 1 or sizes[c] == 1
    )
    return term if kept == term.letters else _Term(term.moved(kept), kept)


def _path(
    terms: Sequence[_Term], output: str, sizes: dict[str, int | None], optimize: object
) -> list[tuple[int, ...]]:
    """Positions of the operands of each step, as opt_einsum gives them."""
    if len(terms) == 1:
        return []
    if optimize is False or len(terms) == 2:
        return [(0, 1), *((0, n) for n in range(len(terms) - 2, 0, -1))]
    import opt_einsum

    number = {c: _ASSUMED_SIZE if n is None else n for c, n in sizes.items()}
    equation = f"{','.join(t.letters for t in terms)}->{output}"
    shapes = [tuple(number[c] for c in t.letters) for t in terms]
    method = "auto" if optimize is True else optimize
    path, _ = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize=method)
    return [tuple(p) for p in path]


def _contract(chosen: Sequence[_Term], kept: set[str]) -> _Term:
    """One step of the path; ``kept`` are the letters that are still needed after it."""
    first, *rest = chosen
    for i, t in enumerate(rest):
        needed = kept.union(*(later.letters for later in rest[i + 1 :]))
        first = _pair(first, t, needed)
    return first.summed_to(kept)


def _pair(a: _Term, b: _Term, kept: set[str]) -> _Term:
    a = a.summed_to(kept | set(b.letters))
    b = b.summed_to(kept | set(a.letters))
    both = [c for c in a.letters if c in b.letters]
    summed = [c for c in both if c not in kept]
    batch = [c for c in both if c in kept]
    rest_a = [c for c in a.letters if c not in both]
    rest_b = [c for c in b.letters if c not in both]
    letters = "".join([*batch, *rest_a, *rest_b])
    if not summed:
        return _Term(a.moved(letters) * b.moved(letters), letters)
    ia, ib = [a.letters.index(c) for c in summed], [b.letters.index(c) for c in summed]
    if not batch:
        return _Term(tensordot(a.v, b.v, [ia, ib]), letters)
    v = _matched(
        "einsum", a.v, b.v, [a.letters.index(c) for c in both], [b.letters.index(c) for c in both]
    )
    out = _batched_contract(
        a.v, v,
        [a.letters.index(c) for c in batch], [b.letters.index(c) for c in batch],
        (ia, ib),
        ([a.letters.index(c) for c in rest_a], [b.letters.index(c) for c in rest_b]),
    )  # fmt: skip
    return _Term(out, letters)


OPERATORS = {"einsum": einsum}
