"""Every rewrite with every op that it can match: it fires, and values, dtypes and shapes stay.

The graphs come from the data: instances of patterns (``instances.py``), the op table in all
surroundings (``surroundings.py``), and the records of rules. ``pytest -m slow`` tries all of them.
The default is an op in three in the core of the surroundings, and a random part of the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from symdnn.compile.program.capabilities import all_capabilities
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.type import TensorType
from symdnn.ops.array.argreduce import ArgMax, ArgMin, argmax, argmin, max_and_argmax
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.control.control import IfElse
from symdnn.ops.core.gradient_control import Print
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.nn.dropout import Dropout
from symdnn.ops.nn.rnn import RNNOp
from symdnn.ops.random.random import RandomOp
from symdnn.opt.lower import without_kernels
from symdnn.opt.optimise import optimise
from symdnn.opt.phases import Selection
from symdnn.rewriting.rewrite import Rewrite
from tests import op_table, seeded
from tests.opt import instances, surroundings
from tests.opt.canonicalize.test_rules import CASES as RECORDS
from tests.opt.harness import SIZES, RuleCase, outputs_of
from tests.opt.instances import Graph
from tests.opt.matrix import CPU, NODE_RULES, Checker
from tests.seeded import new_rng, sampled
from tests.test_op_table import concrete_ops

CASES = op_table.load()
PATTERNS = [r for r in NODE_RULES if r.pattern is not None]
FUNCTIONS = [r for r in NODE_RULES if r.pattern is None]

#: Rules that need more around them than an op and its neighbours, and where they are tested.
ELSEWHERE: dict[str, str] = {
    "update_of_a_part": "only updates have it: tests/gpu/execution/test_updates_by_index.py",
    "update_by_index_in_place": "likewise",
    "hermitian_by_lu": "only a GPU has it: tests/gpu/solver",
    "write_out_rnn_lanes": "likewise: tests/ops/nn/test_rnn.py, by the loop that a GPU has",
    "ranks_by_places": "for a GPU: tests/opt/lower/test_many_best.py",
    "values_at_ranks": "likewise",
    "sort_beside_its_places": "likewise",
    "write_out_selections": "likewise: tests/ops/array/test_order_statistics.py",
    "write_out_complex_increments": "likewise: tests/gpu/codegen/test_complex.py",
    "write_out_nonzero": "likewise: tests/opt/lower/test_data_sizes.py",
    "write_out_unique": "likewise: tests/opt/lower/test_data_sizes.py",
    **{
        r.name: "for a GPU: tests/gpu/kernels/test_without_kernels.py"
        for r in without_kernels.RULES
    },
    "overlap_all_reduce": "a group of several ranks: tests/distributed/test_graphs.py",
    "overlap_moves": "likewise",
    "overlap_agreement": "likewise",
    "product_to_int8": "its operands are dequantised: tests/opt/lower/test_quantized.py",
    "zero_point_apart": "of many terms: tests/opt/lower/test_quantized.py",
    "product_to_8_bits": "likewise: tests/gpu/gemm/test_quantized.py",
    "totals_of_16_bits": "mixed precision makes its sums: tests/opt/lower/test_totals.py",
    "round_before_loop": "mixed precision makes its casts: tests/opt/precision/test_loops.py",
    "round_bias_before_loop": "likewise",
    "one_per_row": "its index numbers the rows: tests/opt/lower/test_one_per_row.py",
    "places_on_device": "of a call: tests/gpu/execution/test_changing_sizes_on_device.py",
    "increments_at_known_places": "constant places, on a GPU: tests/opt/lower/test_known_places.py",
    "sum_with_rows_of_zeros": "its term is a product: tests/opt/lower/test_increments.py",
    "known_number_of_counts": "on a GPU: tests/opt/canonicalize/test_counts.py",
    "first_counts": "likewise",
    "short_sum_of_a_broadcast": "on a GPU: tests/opt/fuse/test_short_sums.py",
    "sum_of_parts_that_are_read": "on a GPU: tests/opt/fuse/test_stencils.py",
    "bessel_of_low_order": "on a GPU: tests/opt/lower/test_bessel.py",
    "product_with_a_vector": "on a GPU: tests/opt/lower/test_vector_products.py",
    "gathered_with_vectors": "likewise",
    "softmax_in_parts": "on a GPU: tests/opt/fuse/test_log_sum_rules.py",
    "softmax_gradient_in_parts": "on a GPU: tests/opt/fuse/test_log_sum_rules.py",
    "softmax_of_a_broadcast": "on a GPU: tests/opt/fuse/test_log_sum_rules.py",
    "adjugate_by_factors": "on a GPU: tests/opt/lower/test_matrix_rules.py",
    "rolls_are_one_gather": "several rolls: tests/opt/lower/test_rolls.py",
    "elementwise_before_mask": "of each op, cheap or not: tests/opt/lower/test_masked.py",
    "many_best_by_partition": "of many elements: tests/opt/lower/test_many_best.py",
    **{r.rule: "its record, where other rules run beside it" for r in RECORDS if r.beside},
    **{
        f"local_dnn_{kind}_{what}_merge": "cudnn/test_merge.py: beside cuDNN's convolutions"
        for kind in ("conv", "convw", "convi")
        for what in ("alpha", "output")
    },
    "local_log_softmax_dnn": "cudnn/test_lowering.py: a softmax that is cuDNN's already",
    "local_cudnn_maxandargmax": "cudnn/test_lowering.py: two reductions by cuDNN of one tensor",
    "local_dnn_dropout": "cudnn/test_lowering.py: its hint asks for cuDNN",
    "local_dnn_dropout_grad": "cudnn/test_lowering.py: its hint asks for cuDNN",
    "local_batch_norm_inplace_running": "cudnn/test_lowering.py: updates of shared variables",
    "images_seen_last": "test_layout.py: ops by cuDNN of images seen through a dimshuffle",
    "softmax_of_permuted": "test_layout.py: ops by cuDNN of images seen through a dimshuffle",
    "fold_batch_norm": "cudnn/test_lowering.py and test_onednn_graphs.py: behind a convolution",
    "gpu_batch_norm_into_elementwise": "tests/opt/epilogue/test_fold_batch_norm.py: on a GPU",
    "bfloat16_rnn_in_float32": "tests/onnx/ops/test_recurrent.py: in 16 bits, without a reserve",
    "narrow_rnn_in_float32": "tests/onnx/ops/test_recurrent.py: in 16 bits, without a reserve",
    "widened_before_reshape": "cublaslt/test_epilogue.py: of a product in 16 bits",
    "relu_gradient_before_pooling": "test_pool_rules.py: a whole layer's gradient",
}


#: Pairs that need more, and where they are tested.
PAIRS: dict[tuple[str, str], str] = {
    ("gelu_written_out", "TrueDiv"): "tests/stable/test_activations.py: divided by 2",
    ("constant_folding", "BinomialCheckpoint"): "there is a loop in its graph: it is never folded",
    ("local_dnn_activation", "Minimum"): "cudnn/test_lowering.py: of a relu that is cuDNN's",
    ("pool_grad_to_onednn", "AveragePoolGrad"): "tests/cpu/onednn/test_onednn.py: windows",
    ("pool_grad_to_onednn", "MaxPoolGrad"): "tests/cpu/onednn/test_onednn.py: windows",
}


def claims(rule: Rewrite, op: type[Any]) -> bool:
    """Whether ``rule`` may apply to ``op``: by its op types, and by facts that exclude it."""
    if not issubclass(op, rule.ops):
        return False
    if (rule.name, op.__name__) in PAIRS:
        return False
    needs = FACTS.get(rule.name)
    return needs is None or needs(op)


def _folds(op: type[Any]) -> bool:
    opaque = issubclass(op, RNNOp) or "RNN" in op.__name__ or "Dropout" in op.__name__
    lazy = issubclass(op, RandomOp | Dropout | IfElse) or op is Print
    return op.folds and not (opaque or lazy) and op.__name__ not in WITHOUT_INPUTS | OF_GRADIENTS


#: Ops that can't be made from constants: others are made from their inputs.
WITHOUT_INPUTS = {
    "ShapeI", "SpecifyType", "SpecifyShape", "MatchSizes", "GpuFromHost", "HostFromGpu", "Nonzero",
    "RepeatIndex",
}  # fmt: skip
#: Ops that only gradients make: their inputs are repeated numbers, which do not change.
OF_GRADIENTS = {
    "AveragePoolGrad", "BatchNormGrad", "GpuDnnPoolGrad", "GpuDnnSoftmaxGrad", "LRNGrad",
    "MaxPoolGrad", "MaxPoolGradGrad", "SoftmaxGrad",
}  # fmt: skip

FACTS: dict[str, Any] = {
    "constant_folding": _folds,
    "sizes_known_by_now": lambda op: op.__name__ in ("Alloc", "Reshape"),
    "gradient_control_removed": lambda op: op.gradient_only,
    "constant_left": lambda op: op.commutative and op.arity == 2,
    "alloc_beside_operand": lambda op: op.arity > 1,
    "extreme_of_alloc": lambda op: op.idempotent,
    "reduce_of_reduce": lambda op: op.in_parts,
    "local_gpudnn_to_neutral": lambda op: "RNN" not in op.__name__ and "Drop" not in op.__name__,
}


# -- patterns --------------------------------------------------------------------------------------


def of_pattern(rule: Rewrite, limit: int) -> Checker:
    checker = Checker([rule])
    for graph in instances.graphs(rule, new_rng(), limit):
        checker.check(graph)
    return checker


def assert_right(checker: Checker) -> None:
    assert not checker.wrong, "\n".join([f"{len(checker.wrong)} wrong:", *checker.wrong[:20]])


@pytest.mark.parametrize("rule", PATTERNS, ids=lambda r: r.name)
def test_instances_of_a_pattern_keep_their_values(rule: Rewrite) -> None:
    assert_right(of_pattern(rule, 25))


@pytest.mark.slow
@pytest.mark.parametrize("rule", PATTERNS, ids=lambda r: r.name)
def test_all_instances_of_a_pattern_fire_and_keep_their_values(rule: Rewrite) -> None:
    checker = of_pattern(rule, 500)
    assert checker.compared or rule.name in ELSEWHERE, f"never fired in {checker.graphs} graphs"
    assert_right(checker)


# -- the op table ----------------------------------------------------------------------------------


def records(rng: np.random.Generator, fraction: float) -> Iterator[Graph]:
    """The expressions of the rules' records, with further readers too."""
    for record in RECORDS:
        graph = graph_of(record, rng)
        yield graph
        yield from surroundings.readers(graph, rng, fraction)


def graph_of(record: RuleCase, rng: np.random.Generator) -> Graph:
    """The expression of a record."""
    variables = [a.variable(i) for i, a in enumerate(record.args)]
    arrays = [a.draw(rng, {**SIZES, **record.sizes}) for a in record.args]
    return Graph(variables, outputs_of(record.before(*variables)), arrays, f"the record {record}")


def table(rng: np.random.Generator, fraction: float) -> Iterator[Graph]:
    """The op table's graphs; the first case of an op in three in the core of surroundings."""
    seen: dict[type[Op], int] = {}
    for case in CASES:
        for op in case.ops:
            seen[op] = seen.get(op, 0) + 1
        at_turn = (len(seen) + seeded.turn()) % 3 == 0
        first = fraction >= 1 or (at_turn and any(seen[op] <= 1 for op in case.ops))
        yield from surroundings.graphs(case, rng, fraction, first)


def run(fraction: float, often: int | None = None) -> Checker:
    checker = Checker(NODE_RULES, often)
    rng = new_rng()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for graph in (*records(rng, fraction), *table(rng, fraction)):
            checker.check(graph)
    return checker


@pytest.fixture(scope="module")
def checked() -> Checker:
    return run(0.002, often=3)


def test_no_rule_changes_a_value(checked: Checker) -> None:
    assert_right(checked)


def _surroundings(case: Any, ops: set[Any]) -> Iterator[Graph]:
    """All surroundings of a record that has one of these ops."""
    if ops.intersection(case.ops):
        yield from surroundings.graphs(case, new_rng(), 1.0, True)


#: Those of all ops are slow: each op's surroundings are searched for one that they change.
OF_EACH_RULE = [
    pytest.param(rule, marks=pytest.mark.slow) if Op in rule.ops else rule for rule in FUNCTIONS
]


@pytest.mark.parametrize("rule", sampled(OF_EACH_RULE, every=3), ids=lambda r: r.name)
def test_a_rule_fires_for_every_op_that_it_takes(rule: Rewrite, checked: Checker) -> None:
    if rule.name in ELSEWHERE:
        pytest.skip(ELSEWHERE[rule.name])
    ops = {op for op in concrete_ops() if claims(rule, op)}
    if not ops:
        pytest.skip("all of its pairs are tested elsewhere")
    missing = {op for op in ops if (rule.name, op) not in checked.fired.node}
    for rules in ([rule], NODE_RULES):  # some fire only after other rules, or after this one
        alone = Checker(rules)
        for record in RECORDS if missing else ():
            if record.rule == rule.name:
                alone.check(graph_of(record, new_rng()))
        missing -= {op for name, op in alone.fired.node if name == rule.name}
        for case in CASES if missing else ():  # the sample left it out: until it has fired
            for graph in _surroundings(case, missing):
                alone.check(graph)
                missing -= {op for name, op in alone.fired.node if name == rule.name}
                if not missing.intersection(case.ops):
                    break
        assert_right(alone)
    assert not missing, f"{rule.name} never fired for {sorted(op.__name__ for op in missing)}"


def test_an_index_goes_through_every_elementwise_op(rng: np.random.Generator) -> None:
    checker = Checker([r for r in NODE_RULES if r.name == "index_of_elemwise"])
    ops = {op for op in concrete_ops() if issubclass(op, Elemwise)}
    for case in CASES:
        if ops.intersection(case.ops):
            arrays = [np.asarray(d(rng)) for d in case.draws]
            known = [surroundings.of_known_shape] * len(arrays)
            base = surroundings.build(case, arrays, known, rng)
            for graph in surroundings.readers(base, rng, 0.0) if base else ():
                checker.check(graph)
    assert_right(checker)
    assert not {op.__name__ for op in ops - {op for _, op in checker.fired.behind}}


def test_what_is_tested_elsewhere_exists() -> None:
    assert set(ELSEWHERE) <= {r.name for r in NODE_RULES}
    assert {*FACTS, *(name for name, _ in PAIRS)} <= {r.name for r in NODE_RULES}
    assert {op for _, op in PAIRS} <= {op.__name__ for op in concrete_ops()}


@pytest.mark.slow
def test_all_surroundings_of_all_ops() -> None:
    assert_right(run(1.0))


# -- facts about reductions ------------------------------------------------------------------------


REDUCTIONS = sorted((o for o in concrete_ops() if issubclass(o, Reduce)), key=lambda o: o.__name__)


@pytest.mark.parametrize("op", REDUCTIONS, ids=lambda o: o.__name__)
def test_reductions_are_what_they_say(op: Any, rng: np.random.Generator) -> None:
    """The facts that rules go by, against the reference."""
    x = rng.permutation(24).reshape(2, 3, 4).astype("float64")
    x = (x % 5 > 1).astype("bool") if "True" in op.__name__ else x
    extra = ("float64", "float64") if op.__name__ in ("Sum", "Prod") else ()

    def reduced(a: np.ndarray, axes: Any) -> Any:
        return op(tuple(axes), False, *extra).reference(a)

    turned = reduced(x.transpose(2, 1, 0), (0, 2))
    same = np.allclose(turned, reduced(x, (0, 2)))
    assert same or not op.any_order
    assert op.any_order != (op in (ArgMax, ArgMin))
    if op.in_parts:
        np.testing.assert_allclose(reduced(reduced(x, (2,)), (0,)), reduced(x, (0, 2)))
    if op.idempotent:
        np.testing.assert_array_equal(reduced(np.concatenate([x, x]), (0,)), reduced(x, (0,)))
    if op.keeps_one:
        v = TensorType(x.dtype.name, (None,) * 3)()
        one = op((0,), False, *extra).of_one(v)
        np.testing.assert_array_equal(evaluate([one], {v: x})[0], reduced(x[np.newaxis], (0,)))


ORDERS = [
    (1, 0, 2),
    (2, 1, 0),
    (0, 2, 1),
    (2, 0, 1),
    (1, 2, 0),
    (1, "x", 0, 2),
    (2, "x", 1, "x", 0),
]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("function", [argmax, argmin, max_and_argmax])
def test_places_in_transposed_tensors(order: Any, function: Any, rng: np.random.Generator) -> None:
    """The index counts in the order that the user sees, over any axes, in any order of axes."""
    shapes = [(3, 4, 5), (1, 4, 5), (3, 1, 5), (1, 1, 5)]
    for dtype in ("float32", "int8", "uint8", "bool", "bfloat16"):
        shape = shapes[int(rng.integers(len(shapes)))]
        a = (rng.permutation(int(np.prod(shape))).reshape(shape) % 120).astype("float64")
        a = a.astype(TensorType(dtype).numpy)
        x = TensorType(dtype, tuple(1 if n == 1 else None for n in shape))("x")
        ndim = len(order)
        axes = [None, 0, -1, (0, 1), (1, 0), (-1, 0), tuple(range(ndim - 1)), (ndim - 1, ndim - 2)]
        outs = [o for axis in axes for o in _several(function(x.dimshuffle(order), axis))]
        fgraph = FunctionGraph([x], outs)
        optimise(
            fgraph, CPU, Selection(frozenset({"fast_run", "fast_compile"})), all_capabilities()
        )
        plain = evaluate(outs, {x: a})
        for got, want in zip(evaluate(fgraph.outputs, {fgraph.inputs[0]: a}), plain, strict=True):
            np.testing.assert_array_equal(got, want)
        rows = a.transpose([d for d in order if d != "x"]).reshape(-1).astype("float64")
        first = plain[1] if function is max_and_argmax else plain[0]
        assert first == (rows.argmin() if function is argmin else rows.argmax())


def _several(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)
