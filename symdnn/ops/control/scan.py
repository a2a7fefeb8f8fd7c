"""``Scan``: a loop over sequences whose step is a graph, with values carried between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from symdnn.errors import AxisError, IndexOutOfRange, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Shape, known, same_dim
from symdnn.graph.inner import InnerGraph, InnerGraphOp
from symdnn.graph.op import Axes, Batched, Grads, Host, Shapes, Types, Vars
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array
from symdnn.ops.control.scan_loop import run_loop
from symdnn.ops.core.inner_shapes import inner_shapes, scalars_for_shapes


@dataclass(frozen=True)
class Carry:
    """A recurrent value. ``taps`` are the earlier values that a step reads (-1: the last one).

    With ``history`` its output has all values, with the initial ones; without, the last value.
    """

    taps: tuple[int, ...]
    history: bool = True

    @property
    def depth(self) -> int:
        """The number of initial values."""
        return -min(self.taps)


@dataclass(frozen=True)
class Split:
    """Variables, types or arrays of a scan's inputs, by role."""

    steps: Any
    sequences: Sequence[Any]
    initials: Sequence[Any]
    others: Sequence[Any]


@dataclass(frozen=True)
class Scan(InnerGraphOp):
    """Runs ``inner`` once per step.

    Inputs: the number of steps (an integer scalar); sequences of that length, of which step ``t``
    reads entry ``t``; for each state its initial values ``(depth, ...)``, oldest first; and
    non-sequences, which every step reads whole. Inner inputs: an entry of each sequence, each
    state's taps, the non-sequences. Inner outputs: each state's next value, the collected values,
    with ``until`` the condition that ends the loop after its step.

    Outputs: for each state, with ``history``, all values ``(depth + steps, ...)``, and always the
    last one; then the collected values ``(steps, ...)``; with ``until`` the number of steps done.
    ``steps`` is the number of steps if it is static, ``truncate`` the number of steps that a
    gradient goes back (-1: all). A loop without steps has empty results, unless ``least`` demands a
    number of steps. (Theano's ``Scan``.)
    """

    inner: InnerGraph
    sequences: int
    states: tuple[Carry, ...]
    steps: int | None = None
    until: bool = False
    truncate: int = -1
    name: str | None = None
    least: int = 0

    # -- roles of inputs and outputs ----------------------------------------------------------

    @property
    def collected(self) -> int:
        """The number of outputs that are collected step by step."""
        return len(self.inner.outputs) - len(self.states) - self.until

    @property
    def taps(self) -> int:
        """The number of inner inputs that are values of states."""
        return sum(len(c.taps) for c in self.states)

    # What programs for Theano read of a loop, by its names.
    n_seqs = property(lambda self: self.sequences)
    n_sit_sot = property(lambda self: sum(c.taps == (-1,) for c in self.states))
    n_mit_sot = property(lambda self: len(self.states) - self.n_sit_sot)
    n_nit_sot = property(lambda self: self.collected)
    as_while = property(lambda self: self.until)
    truncate_gradient = property(lambda self: self.truncate)

    def split(self, inputs: Sequence[Any]) -> Split:
        """Inputs (or types, shapes, values of them) by role."""
        a = 1 + self.sequences
        b = a + len(self.states)
        return Split(inputs[0], inputs[1:a], inputs[a:b], inputs[b:])

    def split_inner(self, inputs: Sequence[Any]) -> Split:
        """Inner inputs by role; ``initials`` has one list of taps per state."""
        a = self.sequences
        taps = []
        for c in self.states:
            taps.append(list(inputs[a : a + len(c.taps)]))
            a += len(c.taps)
        return Split(None, inputs[: self.sequences], taps, inputs[a:])

    def places(self) -> list[tuple[int | None, int]]:
        """For each state the indices of its two outputs: (history or None, last)."""
        found, i = [], 0
        for c in self.states:
            found.append((i if c.history else None, i + c.history))
            i += 1 + c.history
        return found

    @property
    def first_collected(self) -> int:
        """The index of the first output that is collected step by step."""
        return len(self.states) + sum(c.history for c in self.states)

    @property
    def host_inputs(self) -> tuple[int, ...]:
        first_other = self.sequences + self.taps
        scalars = scalars_for_shapes(self.inner, self._collected_inside())
        shift = 1 + self.sequences + len(self.states) - first_other
        return (0, *(i + shift for i in scalars if i >= first_other))

    def _collected_inside(self) -> tuple[int, ...]:
        first = len(self.states)
        return tuple(range(first, first + self.collected))

    # -- types and shapes ---------------------------------------------------------------------

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        given = self.split(inputs)
        if (
            not isinstance(given.steps, TensorType)
            or given.steps.ndim
            or not given.steps.is_discrete
        ):
            raise TypeMismatch(self, "an integer scalar as number of steps", given.steps)
        inner = self.split_inner(self.inner.input_types)
        for i, (entry, t) in enumerate(zip(inner.sequences, given.sequences, strict=True)):
            self._check(entry, _entry(self, t, f"sequence {i}"), f"sequence {i}")
        for i, (taps, t) in enumerate(zip(inner.initials, given.initials, strict=True)):
            for tap in taps:
                self._check(tap, _entry(self, t, f"initial state {i}"), f"initial state {i}")
            self._check(taps[0], self.inner.output_types[i], f"the next value of state {i}")
        for i, (entry, t) in enumerate(zip(inner.others, given.others, strict=True)):
            self._check(entry, t, f"non-sequence {i}")
        return self._results([t.shape[0] for t in given.sequences], inner)

    def _check(self, wanted: Type, got: Type, what: str) -> None:
        if not wanted.accepts(got):
            raise TypeMismatch(self, f"{what} of type {wanted}", got)

    def _results(self, lengths: Sequence[int | None], inner: Split) -> tuple[Type, ...]:
        sizes = {n for n in (self.steps, *lengths) if n is not None}
        if len(sizes) > 1:
            raise ShapeMismatch(self, "sequences as long as the number of steps", sorted(sizes))
        n = None if self.until or not sizes else sizes.pop()
        out: list[Type] = []
        for c, taps in zip(self.states, inner.initials, strict=True):
            if c.history:
                length = None if n is None else n + c.depth
                out.append(taps[0].with_shape((length, *taps[0].shape)))
            out.append(taps[0])
        for i in self._collected_inside():
            t = self.inner.output_types[i]
            if not isinstance(t, TensorType):
                raise TypeMismatch(self, "tensors to collect", t)
            out.append(t.with_shape((n, *t.shape)))
        return (*out, TensorType("int64", ())) if self.until else tuple(out)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        given = self.split(shapes)
        n = host[0] if self.steps is None else self.steps
        self.check_lengths(n, given)
        if self.until:
            return None
        entries = self.collected_shapes(given, host)
        if any(s is None for s in entries):
            return None
        out: list[Shape] = []
        for c, s in zip(self.states, given.initials, strict=True):
            out += [(n + c.depth, *s[1:])] if c.history else []
            out.append(tuple(s[1:]))
        return [*out, *((n, *s) for s in entries if s is not None)]

    def collected_shapes(self, given: Split, host: Host) -> list[Shape | None]:
        """The shapes of entries of collected values, of inputs of these shapes; None: unknown."""
        inside: list[Shape] = [tuple(s[1:]) for s in given.sequences]
        for c, s in zip(self.states, given.initials, strict=True):
            inside += [tuple(s[1:])] * len(c.taps)
        first_other = len(inside)
        shift = 1 + self.sequences + len(self.states) - first_other
        values = {i - shift: v for i, v in host.items() if i > 0}
        inside += given.others
        return inner_shapes(self.inner, self._collected_inside(), inside, values)

    def check_lengths(self, steps: Any, shapes: Split) -> None:
        """Raise :class:`ShapeMismatch` unless known lengths fit the number of steps."""
        n = known(steps)
        if n is not None and n < 0:
            raise ShapeMismatch(self, "a number of steps that is not negative", n)
        if n is not None and n < self.least:
            raise IndexOutOfRange(f"{self}: wanted the last value, but there was no step")
        for i, s in enumerate(shapes.sequences):
            same_dim(self, (s[0], steps), f"sequence {i} of {steps} steps", f"{s[0]} of them")
        for i, (c, s) in enumerate(zip(self.states, shapes.initials, strict=True)):
            depth = known(s[0])
            if depth is not None and depth != c.depth:
                raise ShapeMismatch(
                    self,
                    f"{c.depth} initial value(s) for state {i} (taps {list(c.taps)})",
                    f"{depth} of them",
                )

    def with_inner(self, inner: InnerGraph) -> Scan:
        """The same loop with another, equivalent step."""
        return replace(self, inner=inner)

    # -- running and differentiating ----------------------------------------------------------

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return tuple(run_loop(self, inputs, lambda given, _: self.inner.compute(given)))

    def empty_shapes(self, inputs: Sequence[Array]) -> list[tuple[int, ...]]:
        """Shapes of the collected entries for a loop without steps."""
        host = {i: int(inputs[i]) for i in self.host_inputs}
        found = self.collected_shapes(self.split([a.shape for a in inputs]), host)
        types = [self.inner.output_types[i] for i in self._collected_inside()]
        return [
            tuple(s) if s is not None else tuple(d or 0 for d in t.shape)  # type: ignore[arg-type, attr-defined]
            for s, t in zip(found, types, strict=True)
        ]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        from symdnn.ops.control.scan_grad import (
            scan_vjp,  # it builds a Scan, so it needs this module
        )

        return scan_vjp(self, inputs, outputs, cotangents)

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        from symdnn.ops.control.scan_forward import scan_jvp  # it builds a Scan

        return scan_jvp(self, inputs, tangents)

    def __str__(self) -> str:
        label = f"{self.name}, " if self.name else ""
        return f"Scan{{{label}{self.sequences} sequences, {len(self.states)} states}}"

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        from symdnn.ops.control.batching_inner import batch_loop  # it builds a Scan, too

        made = batch_loop(self, inputs, axes)
        if made is None or any(o.lengths is not None for o in made):
            return None
        return [o.value for o in made], [0 if o.stacked else None for o in made]


def _entry(op: Scan, t: TensorType, what: str) -> TensorType:
    if not isinstance(t, TensorType) or t.ndim == 0:
        raise AxisError(op, f"{what} with a dimension of steps", t)
    return t.entry()
