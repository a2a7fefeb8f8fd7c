"""Need 15: a user's file and line on every error of a call, kept through all rewrites.

A test walks all passes over all ops and fails if any node has no line of the user. A shape error of
a fused or lowered node prints that line, in the mode in which the function was compiled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Function, Mode, function
from symdnn.autodiff import grad
from symdnn.compile.execute.targets import resolve_target
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.compile.program.placing import program_of
from symdnn.compile.program.program import If, Program, Segment
from symdnn.errors import DataDependentShape, ShapeMismatch, SymdnnError
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.inner import InnerGraph
from symdnn.graph.variable import Apply, Variable
from symdnn.opt.optimise import optimise
from symdnn.opt.phases import PHASES
from tests import seeded
from tests.op_table.record import OpCase
from tests.test_op_table import CASES, draw, outputs, variables

targets = pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])


def users_program(
    case: OpCase, arrays: list[np.ndarray], gradients: bool = True
) -> tuple[list[Variable], list[Variable]]:
    """The expression of a record and its gradients: the only lines that an origin may be of."""
    vs = variables(case, arrays)
    outs = outputs(case, vs)
    costs = [
        o for o in outs if gradients and case.grad and getattr(o.type, "is_differentiable", False)
    ]
    if not costs:
        return vs, outs
    cost = (costs[0].real if costs[0].type.is_complex else costs[0]).sum()
    wrt = [v for v in vs if v.type.is_differentiable]
    return vs, [*outs, *grad(cost, wrt, disconnected_inputs="ignore")]


def of_program(program: Program) -> Iterator[Apply]:
    for region in program.regions:
        if isinstance(region, Segment):
            yield from (*region.host, *region.sizes, *region.nodes)
            continue
        yield region.node
        inside = (region.then, region.orelse) if isinstance(region, If) else (region.body,)
        for each in inside:
            yield from of_program(each)


def with_inner(nodes: Iterable[Apply]) -> Iterator[Apply]:
    for node in nodes:
        yield node
        inner = getattr(node.op, "inner", None)
        if isinstance(inner, InnerGraph):
            yield from with_inner(inner.nodes)


def without_line(nodes: Iterable[Apply]) -> list[str]:
    """Nodes whose origin does not lead to :func:`users_program`."""
    return [
        f"{n} has the origin {n.origin}" for n in with_inner(nodes)
        if not any(name == "users_program" for _, _, name in n.origin.lines)
    ]  # fmt: skip


def note(passes: dict[str, list[str]], fgraph: FunctionGraph, phase: str) -> None:
    passes[phase] += without_line(fgraph.nodes)


@targets
@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_node_of_every_pass_has_the_users_line(target: str, rest: bool) -> None:
    """One record in four; the others are slow. A node takes a millisecond."""
    mode = Mode(target=target)
    passes: dict[str, list[str]] = defaultdict(list)
    machine = resolve_target(mode.target, explain=False)
    for case in seeded.part(CASES, 4, rest):
        fgraph = FunctionGraph(*users_program(case, draw(case)))
        after = partial(note, passes, fgraph)
        optimise(fgraph, machine, mode.selection, all_capabilities(), after_phase=after)
        passes["program"] += without_line(of_program(program_of(fgraph, machine, mode)))
    assert list(passes) == [*PHASES, "program"]
    assert not any(passes.values()), [(phase, found[:9]) for phase, found in passes.items()]


def said(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def wrong_shapes(case: OpCase, arrays: list[np.ndarray]) -> Iterator[list[tuple[int, ...]]]:
    """Shapes with one more in one dimension of one of several arrays."""
    shapes = [a.shape for a in arrays]
    for i, shape in enumerate(shapes):
        for d, n in enumerate(shape):
            fixed = case.static and case.static[i] and case.static[i][d] is not None
            if n > 1 and len(shapes) > 1 and not fixed:
                yield [*shapes[:i], (*shape[:d], n + 1, *shape[d + 1 :]), *shapes[i + 1 :]]


def fails(
    f: Function, arrays: list[np.ndarray], shapes: list[tuple[int, ...]], target: str
) -> SymdnnError | None:
    """The shape error of a function at these sizes, as planned or else as called on the CPU."""
    try:
        f.stages.specialise(dict(zip(f.stages.fgraph.inputs, shapes)))
    except ShapeMismatch as error:
        return error
    except (DataDependentShape, KeyError):  # sizes of values and of loops are those of a call
        if target == "cpu":
            try:
                f(*(np.resize(a, shape) for a, shape in zip(arrays, shapes)))
            except SymdnnError as error:
                return error
    return None


@targets
def test_a_shape_error_of_a_compiled_node_prints_the_users_line(target: str) -> None:
    """All ops with several operands, at the sizes of a call, fused and lowered as they are."""
    found, wrong = 0, []
    for case in CASES:
        arrays = draw(case)
        if not (wrong_ones := list(wrong_shapes(case, arrays))):
            continue
        vs, outs = users_program(case, arrays, gradients=False)
        f = function(vs, outs, mode=Mode(target=target), on_unused_input="ignore")
        for shapes in wrong_ones:
            error = fails(f, arrays, shapes, target)
            if error is not None:
                found += 1
                if "in users_program" not in said(error):
                    wrong.append(f"{case.id} with {shapes}: {said(error)}")
                break
    assert found > 250
    assert not wrong, "\n".join([f"{len(wrong)} errors:", *wrong[:20]])


def layers(mode: Mode | None = None) -> dict[str, Function]:
    """Functions in which a sum of ``x`` and ``y`` is fused, lowered, or in a loop."""
    x, y = T.fmatrices("x", "y")
    made = {
        "fused": T.tanh(x * 2) * T.exp(x + y),  # the wrong line
        "reduced": T.exp(x + y).sum(axis=1),  # the wrong line
        "product": T.nnet.relu(T.dot(x, y) + 1),  # the wrong line
        "softmax": T.nnet.softmax(x - y),  # the wrong line
        "join": T.join(0, x, y) * 2,  # the wrong line
    }
    loop, _ = symdnn.scan(lambda r: T.exp(r) + y[0], sequences=[x])  # the wrong line
    made["loop"] = loop * 2
    return {k: function([x, y], v, mode=mode) for k, v in made.items()}


def assert_errors_name_their_lines(mode: Mode | None = None) -> None:
    source = Path(__file__).read_text().splitlines()
    for name, f in layers(mode).items():
        with pytest.raises(ShapeMismatch) as caught:
            f(np.ones((3, 4), "float32"), np.ones((5, 6), "float32"))
        (line,) = [i for i, s in enumerate(source, 1) if s.endswith("# the wrong line") and (
            f'"{name}":' in s or (name == "loop" and "scan(" in s)
        )]  # fmt: skip
        assert f'File "{__file__}", line {line}, in ' in said(caught.value), name


def test_the_line_of_the_wrong_part_of_a_fused_node_is_printed() -> None:
    assert_errors_name_their_lines()


@pytest.mark.gpu
def test_the_lines_on_a_card(card: object) -> None:
    assert_errors_name_their_lines(Mode(target="cuda"))
