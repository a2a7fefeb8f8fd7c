"""``pprint``: an expression as a formula, with infix operators and few parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from symdnn.compile.function import Function
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.traverse import toposort
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array import index
from symdnn.ops.array.slices import fill_in, pattern_text
from symdnn.ops.core import shape
from symdnn.ops.elementwise import arithmetic, comparison
from symdnn.ops.linalg import dot

#: In expressions of more operations than this, common subexpressions get names.
MAX_OPS_WITHOUT_NAMES = 60
#: Longer texts are replaced by a number in the texts around them until all are known.
MAX_INLINE_CHARACTERS = 500

COMPARE, OR, XOR, AND, SHIFT, SUM, PRODUCT, SIGN, POWER, ATOM = range(10)


class Text(NamedTuple):
    """A text with the precedence of its outermost operator."""

    text: str
    strength: int = ATOM

    def within(self, strength: int) -> str:
        """The text, in parentheses if an operator of this precedence binds tighter."""
        return self.text if self.strength >= strength else f"({self.text})"


INFIX: Mapping[type[Op], tuple[str, int]] = {
    arithmetic.Add: ("+", SUM),
    arithmetic.Sub: ("-", SUM),
    arithmetic.Mul: ("*", PRODUCT),
    arithmetic.TrueDiv: ("/", PRODUCT),
    arithmetic.IntDiv: ("//", PRODUCT),
    arithmetic.Mod: ("%", PRODUCT),
    arithmetic.Pow: ("**", POWER),
    comparison.Lt: ("<", COMPARE),
    comparison.Le: ("<=", COMPARE),
    comparison.Gt: (">", COMPARE),
    comparison.Ge: (">=", COMPARE),
    comparison.Eq: ("==", COMPARE),
    comparison.Neq: ("!=", COMPARE),
    comparison.And: ("&", AND),
    comparison.Or: ("|", OR),
    comparison.Xor: ("^", XOR),
    comparison.LeftShift: ("<<", SHIFT),
    comparison.RightShift: (">>", SHIFT),
    dot.Dot: ("@", PRODUCT),
}
#: Fields of ops that a formula leaves out, since they say only how numbers are stored.
OMITTED_FIELDS = ("dtype", "acc_dtype", "static", "type")
PREFIX: Mapping[type[Op], str] = {arithmetic.Neg: "-", comparison.Invert: "~"}


def pprint(obj: Any) -> str:
    """The expression as text; of a list or a compiled function one line for each output.

    Leading dimensions that broadcasting added are left out. Common subexpressions of a long
    expression are named first, as ``t1 = ...``. Also ``pp``.

    >>> import symdnn.tensor as T
    >>> x, y = T.vectors("x", "y")
    >>> pprint((x + 2) * y - T.exp(-x).sum() / 3)
    '(x + 2) * y - sum(exp(-x)) / 3'
    """
    if isinstance(obj, Function):
        count = len(obj.fgraph.outputs) - len(obj.updated)
        leads = [""] * count + [f"{v} <- " for v in obj.updated]
        return "\n".join(_lines(obj.fgraph.outputs, leads))
    if isinstance(obj, FunctionGraph):
        obj = obj.outputs
    outputs = list(obj) if isinstance(obj, list | tuple) else [obj]
    for v in outputs:
        if not isinstance(v, Variable):
            raise TypeError(f"pprint takes a variable or a compiled function, got {v!r}")
    return "\n".join(_lines(outputs, [""] * len(outputs)))


def _lines(outputs: Sequence[Variable], leads: Sequence[str]) -> list[str]:
    order = toposort(outputs)
    named = _worth_a_name(order, outputs)
    lines: list[str] = []
    texts: dict[Variable, Text] = {}
    held: list[str] = []
    for node in order:
        said = _node(node, [_known(v, texts) for v in node.inputs])
        if node in named:
            name = f"t{len(lines) + 1}"
            lines.append(f"{name} = {said.text}")
            said = Text(name)
        elif len(said.text) > MAX_INLINE_CHARACTERS:
            held.append(said.text)
            said = Text(f"\0{len(held) - 1}\0", said.strength)
        for v in node.outputs:
            texts[v] = said if len(node.outputs) == 1 else Text(f"{said.within(ATOM)}[{v.index}]")
    lines += [lead + _known(v, texts).text for v, lead in zip(outputs, leads)]
    return [_written_out(line, held) for line in lines]


def _written_out(line: str, held: Sequence[str]) -> str:
    """The line with the long texts inserted, each copied once at any depth."""
    done: list[str] = []
    pending = [line]
    while pending:
        pieces = re.split("\0([0-9]+)\0", pending.pop())
        done.append(pieces[0])
        for number, rest in zip(pieces[-2::-2], pieces[:1:-2]):
            pending += [rest, held[int(number)]]
    return "".join(done)


def _worth_a_name(order: Sequence[Apply], outputs: Sequence[Variable]) -> set[Apply]:
    """The common subexpressions that get names: none in a short expression."""
    sizes: dict[Apply, int] = {}
    uses: dict[Apply, int] = {}
    for node in order:
        owners = [v.owner for v in node.inputs if v.owner is not None]
        sizes[node] = min(1 + sum(sizes[n] for n in owners), MAX_OPS_WITHOUT_NAMES + 1)
        for n in owners:
            uses[n] = uses.get(n, 0) + 1
    if sum(sizes[v.owner] for v in outputs if v.owner is not None) <= MAX_OPS_WITHOUT_NAMES:
        return set()
    return {n for n, count in uses.items() if count > 1 and not _is_plain(n)}


def _is_plain(node: Apply) -> bool:
    """Whether a common subexpression is short enough to repeat: a size, or a view of a leaf."""
    return isinstance(node.op, shape.ShapeI | shape.DimShuffle) and node.inputs[0].owner is None


def _known(v: Variable, texts: Mapping[Variable, Text]) -> Text:
    if v in texts:
        return texts[v]
    if isinstance(v, Constant) and v.name is None and v.data.size == 1:
        # NumPy's shortest text that reads back as the value; whole numbers as users write them.
        shown = str(v.data.reshape(())[()]).removesuffix(".0")
        return Text(shown, SIGN if shown.startswith("-") else ATOM)
    return Text(str(v))


def _node(node: Apply, inputs: Sequence[Text]) -> Text:
    kind = type(node.op)
    if kind in INFIX:
        return _infix(*INFIX[kind], inputs)
    if kind in PREFIX:
        return Text(f"{PREFIX[kind]}{inputs[0].within(SIGN)}", SIGN)
    return SPECIAL.get(kind, _call)(node, inputs)


def _infix(symbol: str, strength: int, inputs: Sequence[Text]) -> Text:
    left, right = inputs
    if strength == POWER:  # the one operator that groups to the right; -x binds looser than it
        return Text(f"{left.within(ATOM)} ** {right.within(SIGN)}", POWER)
    both = strength + 1 if strength == COMPARE else strength
    return Text(f"{left.within(both)} {symbol} {right.within(strength + 1)}", strength)


def _call(node: Apply, inputs: Sequence[Text]) -> Text:
    """``log_softmax(x, axis=1)``: the op in lower case, inputs, fields without defaults."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(node.op).__name__).lower()
    given = [
        f"{f.name}={value}"
        for f in fields(node.op)  # type: ignore[arg-type]
        if f.repr
        and f.name not in OMITTED_FIELDS
        and _says(value := getattr(node.op, f.name), node)
    ]
    return Text(f"{name}({', '.join([t.text for t in inputs] + given)})")


def _says(value: object, node: Apply) -> bool:
    """Whether a field's value is printed: if it is no default, and not all axes."""
    ndim = getattr(node.inputs[0].type, "ndim", 0) if node.inputs else 0
    return value is not None and value is not False and value != tuple(range(ndim))


def _dimshuffle(node: Apply, inputs: Sequence[Text]) -> Text:
    assert isinstance(node.op, shape.DimShuffle)
    pattern, ndim = node.op.pattern, node.inputs[0].type.ndim
    if [d for d in pattern if d != "x"] == list(range(ndim)) and "x" not in pattern[-ndim:]:
        return inputs[0]  # broadcasting would do the same
    if all(d == "x" for d in pattern):
        return inputs[0]
    if pattern == (1, 0):
        return Text(f"{inputs[0].within(ATOM)}.T")
    shown = ", ".join(repr(d) for d in pattern)
    return Text(f"{inputs[0].within(ATOM)}.dimshuffle({shown})")


def _subtensor(node: Apply, inputs: Sequence[Text]) -> Text:
    assert isinstance(node.op, index.Subtensor)
    entries = fill_in(node.op.index, [t.text for t in inputs[1:]])
    return Text(f"{inputs[0].within(ATOM)}[{pattern_text(tuple(entries))}]")


def _size(node: Apply, inputs: Sequence[Text]) -> Text:
    assert isinstance(node.op, shape.ShapeI)
    return Text(f"{inputs[0].within(ATOM)}.shape[{node.op.axis}]")


def _reshape(node: Apply, inputs: Sequence[Text]) -> Text:
    sizes = ", ".join(t.text for t in inputs[1:])
    return Text(f"{inputs[0].within(ATOM)}.reshape(({sizes}))")


def _cast(node: Apply, inputs: Sequence[Text]) -> Text:
    return Text(f"{node.outputs[0].type.dtype}({inputs[0].text})")


SPECIAL: Mapping[type[Op], Callable[[Apply, Sequence[Text]], Text]] = {
    shape.DimShuffle: _dimshuffle,
    shape.ShapeI: _size,
    shape.Reshape: _reshape,
    index.Subtensor: _subtensor,
    arithmetic.Cast: _cast,
}
