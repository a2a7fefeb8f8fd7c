"""A training's compiled functions: one step, and one batch's measures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.compile.function import Function, function
from symdnn.compile.updates import as_pairs
from symdnn.config import config
from symdnn.distributed.counting import counting
from symdnn.distributed.gradients import DataParallel
from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.tracing import check_takes
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Shared, Variable
from symdnn.loss_scale import LossScale
from symdnn.nn.modules.module import Module
from symdnn.nn.optimizers.average import Average, ema
from symdnn.nn.optimizers.base import Updates
from symdnn.nn.training.metrics import Metric
from symdnn.ops.collective.functions import all_reduce
from symdnn.sharding.axis import AxisLayout
from symdnn.sharding.storage import layout_of
from symdnn.world.group import Group


@dataclass(frozen=True)
class Problem:
    """A network, its loss and metrics, and the variables of a batch."""

    net: Module
    criterion: Callable[..., Any]
    metrics: Mapping[str, Metric]
    #: The variables of a batch, and how many of the last are targets; 0: the inputs are.
    inputs: tuple[Variable, ...]
    targets: int
    mode: Any = None
    #: How gradients are averaged over ranks; its samples are a further input of a step.
    parallel: DataParallel | None = None
    #: Groups of ranks that train together, on samples or parts of parameters of their own.
    groups: tuple[Group, ...] = ()

    @property
    def batch(self) -> list[Variable]:
        """The inputs of a step: those of a batch, and of several ranks the number of samples."""
        samples = None if self.parallel is None else self.parallel.samples
        return [*self.inputs, *([] if samples is None else [samples])]

    def outputs(self) -> list[Variable]:
        """The loss and the metrics' values, of an expression that is built now."""
        count = len(self.inputs) - self.targets
        xs, ts = self.inputs[:count], self.inputs[count:] or self.inputs
        with counting(self.parallel):
            y = self.net(*xs)
            loss = self.criterion(y, *ts)
        if not isinstance(loss, Variable) or loss.type.ndim or not loss.type.is_float:
            raise TypeMismatch("fit: criterion(output, target)", "a scalar loss", repr(loss))
        found = [loss]
        for metric in self.metrics.values():
            found += metric.outputs(y, ts)
        return found


@dataclass(frozen=True)
class Steps:
    """The functions of a training, and all variables that they change besides the network's."""

    train: Function
    evaluate: Function
    updates: Updates
    #: Further variables that the functions update: the states of random streams.
    random: Mapping[str, Shared]
    average: Average | None
    #: The type of the learning rate, the last argument of a step; None: it takes none.
    rate_type: type[np.generic] | None


def build(
    problem: Problem, optimiser: Callable[..., Any], params: object, *, with_rate: bool,
    amp: str | None = None, loss_scale: LossScale | None = None, average: float | None = None,
) -> Steps:  # fmt: skip
    """Compile the functions; ``optimiser(loss, params[, rate])`` gives the updates.

    A step of several ranks has the further inputs ``samples`` and ``asked``, and as its last output
    whether a rank was asked to stop. The expression of a step has the modules in the modes that
    they are in, or in training where none is; that of a measurement has all of them in evaluation.
    The modes are left as they were.
    """
    flags = {} if amp is None else {"amp": amp}
    if amp == "fp16" and loss_scale is None:
        loss_scale = LossScale()
    with config.change_flags(**flags):
        asked = _asked(problem)
        with _training(problem.net):
            found = problem.outputs()
        updates, rate = _updates(
            optimiser, found[0], params, with_rate, loss_scale, problem.parallel
        )
        kept = None if average is None else ema(updates, params, average)
        if kept is not None:
            updates = kept.updates
        inputs = [*problem.batch, *asked[:1], *([] if rate is None else [rate])]
        found += asked[-1:]
        train = function(inputs, found, updates=updates, mode=problem.mode, name="fit: a step")
        evaluate = build_evaluation(problem)
    random = _random([train, evaluate], problem.net, updates)
    rate_type = None if rate is None else rate.type.numpy.type
    return Steps(train, evaluate, updates, random, kept, rate_type)


def _asked(problem: Problem) -> list[Variable]:
    """An input of a step of several ranks, whether this one is to stop; and whether one is."""
    if not problem.groups:
        return []
    found = [TensorType("float32", ())("asked")]
    for group in problem.groups:
        found.append(all_reduce(found[-1], "max", group))
    return found


def build_evaluation(problem: Problem) -> Function:
    """Compile the loss and metrics in evaluation."""
    with _modes_kept(problem.net):
        problem.net.evaluate()
        found = problem.outputs()
    # The loss of several ranks may need the number of samples, and may not.
    unused = None if problem.parallel is None else "ignore"
    return function(
        problem.batch, found, mode=problem.mode, on_unused_input=unused, name="fit: a measurement"
    )


def _updates(
    optimiser: Callable[..., Any], loss: Variable, params: object, with_rate: bool,
    scale: LossScale | None, parallel: DataParallel | None,
) -> tuple[Updates, Variable | None]:  # fmt: skip
    wide = any(v.type.dtype == "float64" for v in _variables(params))
    rate = TensorType("float64" if wide else "float32", ())("rate") if with_rate else None
    options: dict[str, Any] = {} if scale is None else {"loss_scale": scale}
    options |= {} if parallel is None else {"distributed": parallel}
    given = [loss, params, *([] if rate is None else [rate])]
    check_takes("fit: optimiser", optimiser, ["loss", "params", "lr"][: len(given)], options)
    found = optimiser(*given, **options)
    if isinstance(found, Updates):
        return found, rate
    if not isinstance(found, Mapping | list | tuple):
        raise InputError(f"fit: the optimiser gave {found!r:.60}; wanted a list of updates")
    return Updates(as_pairs(found, "fit: what the optimiser gives")), rate


def _variables(params: object) -> Iterator[Variable]:
    if isinstance(params, Module):
        yield from params.parameters()
    elif isinstance(params, Variable):
        yield params
    elif isinstance(params, list | tuple):
        for p in params:
            yield from _variables(p)


def _random(functions: Iterable[Function], net: Module, updates: Updates) -> dict[str, Shared]:
    """Updated variables that are neither the network's nor the optimiser's, in order."""
    known = {*net.named_parameters().values(), *net.named_buffers().values()}
    known |= {*updates.state.values(), *(v for v, _ in updates)}
    layouts = [layout_of(v) for v in known if isinstance(v, Shared)]
    known |= {layout.own for layout in layouts if isinstance(layout, AxisLayout)}
    found = dict.fromkeys(v for f in functions for v in f.updated if v not in known)
    return {str(i): v for i, v in enumerate(found)}


@contextlib.contextmanager
def _modes_kept(net: Module) -> Iterator[None]:
    before = [(m, m.training) for _, m in net.named_modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextlib.contextmanager
def _training(net: Module) -> Iterator[None]:
    with _modes_kept(net):
        if not any(m.training for _, m in net.named_modules()):
            net.train()
        yield


def as_list(batch: object, count: int | None = None) -> list[Array]:
    """The arrays of a batch: itself, or its entries; ``count`` of them, of one length.

    Raises :class:`~symdnn.errors.InputError` for what is none.
    """
    if isinstance(batch, Mapping):
        entries = list(batch.values())
    else:
        entries = list(batch) if isinstance(batch, list | tuple) else [batch]
    arrays = [a if hasattr(a, "dtype") and hasattr(a, "shape") else np.asarray(a) for a in entries]
    for i, a in enumerate(arrays):
        if getattr(a.dtype, "kind", "f") in "OUSmM":
            raise InputError(f"fit: entry {i} of a batch has dtype {a.dtype}; wanted numbers")
    lengths = [tuple(a.shape)[:1] for a in arrays]
    if not all(lengths) or len(set(lengths)) != 1:
        shapes = ", ".join(str(tuple(a.shape)) for a in arrays) or "nothing"
        raise InputError(f"fit: a batch has arrays of shapes {shapes}; wanted one length for all")
    if count is not None and len(arrays) != count:
        raise InputError(f"fit: a batch has {len(arrays)} arrays; the first one had {count}")
    return arrays


def check_repeats(what: str, data: object) -> None:
    """Refuse iterators, which give their batches for one epoch only."""
    if not hasattr(data, "__iter__") or iter(data) is data:
        raise InputError(
            f"fit: {what} must give its batches for every epoch anew: nn.batches(...), a list, an "
            f"object with __iter__; got {data!r:.60}"
        )


def first_of(data: Any) -> list[Any]:
    """The arrays of the first batch, which is not used up."""
    check_repeats("data", data)
    at = getattr(data, "at", None)
    for batch in data if at is None else at(0):
        return [np.asarray(a) for a in as_list(batch)]
    raise InputError("fit: data has no batch")


def variables_for(arrays: Sequence[Array]) -> tuple[Variable, ...]:
    """Variables of these dtypes and numbers of dimensions, all sizes unknown."""
    return tuple(
        TensorType(a.dtype.name, (None,) * a.ndim)(f"batch_{i}") for i, a in enumerate(arrays)
    )
