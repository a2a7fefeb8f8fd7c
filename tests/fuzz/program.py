"""A random expression as data: inputs and steps, run symbolically, by NumPy, or written as text."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from tests import op_table
from tests.fuzz.values import as_text, lay_out


@dataclass(frozen=True)
class Ref:
    """A value of the program: input or step ``at``, of a step with several outputs the ``item``."""

    at: int
    item: int | None = None

    def text(self, names: list[str]) -> str:
        return names[self.at] if self.item is None else f"{names[self.at]}[{self.item}]"


@dataclass(frozen=True)
class Input:
    """An argument: its values, its strides, and the statically known part of its shape."""

    value: np.ndarray
    static: tuple[int | None, ...]
    layout: str = "C"

    @property
    def type(self) -> TensorType:
        return TensorType(self.value.dtype.name, self.static)

    def array(self) -> np.ndarray:
        return lay_out(self.value, self.layout)


@dataclass(frozen=True)
class Step:
    """A function by its path (``T.tanh``, ``operator.add``, ``case.conv2d``) and its arguments."""

    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def refs(self) -> list[Ref]:
        """Its inputs, in order."""
        found: list[Ref] = []
        walk((self.args, dict(self.kwargs)), lambda r: found.append(r) or r)
        return found

    def mapped(self, change: Callable[[Ref], Any]) -> Step:
        return replace(self, args=walk(self.args, change), kwargs=walk(dict(self.kwargs), change))


@dataclass(frozen=True)
class Program:
    """Inputs and steps in order; ``outputs`` are looked at."""

    items: tuple[Input | Step, ...]
    outputs: tuple[Ref, ...]

    @property
    def inputs(self) -> list[Input]:
        return [i for i in self.items if isinstance(i, Input)]

    def needed(self) -> set[int]:
        """The items that the outputs depend on."""
        found: set[int] = set()
        stack = [r.at for r in self.outputs]
        while stack:
            at = stack.pop()
            item = self.items[at]
            if at not in found and isinstance(item, Step):
                stack += [r.at for r in item.refs()]
            found.add(at)
        return found

    def pruned(self) -> Program:
        """The program without unused items."""
        keep = sorted(self.needed())
        place = {old: new for new, old in enumerate(keep)}

        def move(r: Ref) -> Ref:
            return Ref(place[r.at], r.item)

        items = [self.items[k] for k in keep]
        moved = tuple(i.mapped(move) if isinstance(i, Step) else i for i in items)
        return Program(moved, tuple(map(move, self.outputs)))

    def arrays(self) -> list[np.ndarray]:
        return [i.array() for i in self.inputs]


def walk(value: Any, change: Callable[[Ref], Any]) -> Any:
    """``value`` with each :class:`Ref` in it replaced, in order."""
    if isinstance(value, Ref):
        return change(value)
    if isinstance(value, list):
        return [walk(v, change) for v in value]
    if isinstance(value, tuple):
        return tuple(walk(v, change) for v in value)
    if isinstance(value, dict):
        return {k: walk(v, change) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*(walk(v, change) for v in (value.start, value.stop, value.step)))
    return value


@cache
def cases() -> dict[str, op_table.OpCase]:
    """The op table by id."""
    return {c.id: c for c in op_table.load()}


@cache
def function_of(path: str) -> Callable[..., Any]:
    """The symbolic function that a path names."""
    first, *rest = path.split(".")
    if first == "case":
        build: Callable[..., Any] = cases()[".".join(rest)].build
        return build
    if first == "indexing":
        found: Any = importlib.import_module("tests.fuzz.indexing")
    else:
        found = {"T": T, "operator": operator}[first]
    for name in rest:
        found = getattr(found, name)
    return found  # type: ignore[no-any-return]


def pick(results: list[Any], r: Ref) -> Any:
    """The value of a reference, given the results of all items before."""
    return results[r.at] if r.item is None else results[r.at][r.item]


def results_of(items: Iterable[Input | Step], inputs: Iterable[Any]) -> list[Any]:
    """The results of all items, given values of the inputs."""
    given, results = iter(inputs), list[Any]()
    for item in items:
        if isinstance(item, Input):
            results.append(next(given))
        else:
            s = item.mapped(lambda r: pick(results, r))
            results.append(function_of(item.path)(*s.args, **s.kwargs))
    return results


def variables(program: Program) -> tuple[list[Variable], list[Any]]:
    """The inputs as variables, and the results of all items."""
    items = program.items
    inputs = [i.type(f"v{k}") for k, i in enumerate(items) if isinstance(i, Input)]
    return inputs, results_of(items, inputs)


# -- as text --------------------------------------------------------------------------------------


class _Bare:
    """Printed without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def script(program: Program, tail: list[str]) -> str:
    """Python that runs by itself: arrays, variables, steps; then ``tail``."""
    names = [f"v{k}" for k in range(len(program.items))]
    body, values = [], []
    for k, item in enumerate(program.items):
        if isinstance(item, Input):
            values.append(f"a{k} = {_laid_out(item)}")
            t = f"T.TensorType({item.type.dtype!r}, {item.type.shape})"
            body.append(f"v{k} = {t}('v{k}')")
        else:
            body.append(f"v{k} = {_call(item, names)}")
    given = [f"v{k}" for k, i in enumerate(program.items) if isinstance(i, Input)]
    out = ", ".join(r.text(names) for r in program.outputs)
    lines = [*values, *body, f"inputs, outputs = [{', '.join(given)}], [{out}]"]
    lines.append(f"arrays = [{', '.join('a' + g[1:] for g in given)}]")
    lines += tail
    text = "\n".join(lines)
    return "\n".join([*_imports(text), text])


def _imports(text: str) -> list[str]:
    wanted = {
        "ml_dtypes.": "import ml_dtypes",
        "base64.": "import base64, zlib",
        "operator.": "import operator",
        "lay_out(": "from tests.fuzz.values import lay_out",
        "case[": "from tests import op_table\ncase = {c.id: c for c in op_table.load()}",
    }
    extra = [line for mark, line in wanted.items() if mark in text]
    return ["import numpy as np", "import symdnn, symdnn.tensor as T", *extra]


def _laid_out(item: Input) -> str:
    text = as_text(item.value)
    return text if item.layout == "C" else f"lay_out({text}, {item.layout!r})"


def _call(step: Step, names: list[str]) -> str:
    s = step.mapped(lambda r: _Bare(r.text(names)))
    if step.path == "operator.getitem":
        return f"{s.args[0]}[{_index_text(s.args[1])}]"
    if step.path.startswith("indexing."):
        x, index, y = s.args
        return _INDEXING[rest_of(step.path)].format(x=x, i=_index_text(index), y=_literal(y))
    args = [*map(_literal, s.args), *(f"{k}={_literal(v)}" for k, v in s.kwargs.items())]
    head, _, rest = step.path.partition(".")
    path = f"case[{rest!r}].build" if head == "case" else step.path
    return f"{path}({', '.join(args)})"


_INDEXING = {
    "setting": "T.set_subtensor({x}[{i}], {y})",
    "adding": "T.inc_subtensor({x}[{i}], {y})",
    "slope": "T.grad(({x}[{i}] * {y}).sum(), {x})",
}


def rest_of(path: str) -> str:
    """The part after the first dot."""
    return path.partition(".")[2]


def _literal(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return as_text(value)
    if value is Ellipsis:
        return "..."
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' * (len(value) == 1)})"
    return repr(value)


def _index_text(index: Any) -> str:
    items = index if isinstance(index, tuple) else (index,)
    return ", ".join(map(_entry, items)) + "," * (isinstance(index, tuple) and len(items) == 1)


def _entry(e: Any) -> str:
    if isinstance(e, slice):
        start, stop, step = ("" if b is None else repr(b) for b in (e.start, e.stop, e.step))
        return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"
    return _literal(e)
