"""``fit``: trains a network with a criterion, an optimiser and data for a number of epochs.

It is a convenience: it compiles a function for a step and one for measuring by ``symdnn.function``,
and calls them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import cleandoc
from pathlib import Path
from typing import Any

from symdnn.distributed.gradients import DataParallel
from symdnn.errors import InputError
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable
from symdnn.loss_scale import LossScale
from symdnn.nn import optim
from symdnn.nn.modules.checked import checked
from symdnn.nn.modules.module import Module
from symdnn.nn.schedule import Schedule, as_schedule
from symdnn.nn.training.bar import Bar, bar
from symdnn.nn.training.history import History, text_of
from symdnn.nn.training.interrupts import Interrupts
from symdnn.nn.training.loggers import TensorBoardLog, csv_log
from symdnn.nn.training.metrics import as_metrics
from symdnn.nn.training.prefetch import prefetch as run_ahead
from symdnn.nn.training.ranks import Ranks
from symdnn.nn.training.run import Run, Settings, measured
from symdnn.nn.training.steps import (
    Problem,
    build,
    build_evaluation,
    check_repeats,
    first_of,
    variables_for,
)
from symdnn.sharding.axis import AxisLayout
from symdnn.sharding.storage import layout_of

__all__ = ["fit", "measure"]

PathLike = str | os.PathLike[str]
Callback = Callable[[Run], Any]

#: The end of the docstring of :func:`fit`.
_OPTIONS = """
Options:

``lr``
    the learning rate: a number or a function of the step (:mod:`symdnn.nn.schedule`); by default
    the optimiser's. A ``Plateau`` observes the ``monitor``.
``params``
    the trained parameters, by default those of the network: variables or groups, as for an
    optimiser.
``validation``, ``metrics``
    data to measure on after each epoch; further measures by name: functions
    ``(output, target) -> scalar``, a :class:`~symdnn.nn.training.metrics.Metric`, or the words
    ``"accuracy"``, ``"top_5"``; a list of them will do: ``metrics=["accuracy"]``. A row of the
    history has ``loss`` and each metric, over the training's batches as they were when they came,
    and ``val_loss`` ... over the validation data.
``targets``, ``inputs``
    how many of a batch's last entries are targets; the symbolic inputs, where their types do not
    follow from the first batch.
``monitor``, ``maximise``, ``patience``, ``min_delta``, ``keep_best``
    the measure that is watched (``val_loss``, or ``loss`` without validation), and whether larger
    is better; after how many epochs without a better one, by ``min_delta`` at least, training
    stops; whether the net has the best epoch's values at the end (with validation it has).
``average``
    a decay: moving averages of the parameters are kept (:func:`symdnn.nn.optim.ema`), measured,
    and left in the net.
``checkpoint``, ``checkpoint_every``, ``resume``
    a .safetensors file that is written after so many epochs and at Ctrl-C. With ``resume`` training
    goes on from it where it exists: bit for bit as if it had never stopped, with the parameters,
    statistics, the optimiser's state, random streams, order of the data, schedule and history. Data
    without a method ``at(epoch, start)`` is iterated up to the place where it was left.
``csv``, ``tensorboard``, ``progress``
    a file of the history's numbers; a folder for TensorBoard (``symdnn[tensorboard]``); whether a
    bar is shown (None: where the output is a terminal, and in a notebook).
``callbacks``, ``on_step``
    functions of the :class:`~symdnn.nn.training.run.Run`, called after each epoch and each step;
    ``run.stop(why)`` ends the training after the epoch.
``amp``, ``loss_scale``, ``mode``
    mixed precision, ``"bf16"`` or ``"fp16"`` (the flag ``amp`` while the functions are compiled;
    fp16 comes with a :class:`symdnn.LossScale`), and the mode to compile with.
``distributed``
    True, or a :class:`symdnn.distributed.DataParallel`: the processes that a launcher started train
    together, each on its part of every batch. Measures are those of all samples, rank 0 writes the
    files, and a checkpoint may be resumed on another number of ranks.
``prefetch``
    how many batches a thread makes ahead, and brings to the GPU; 0: none.
"""


@checked
def fit(
    net: Module, criterion: Callable[..., Any], optimiser: Callable[..., Any] | str, data: object,
    epochs: int, *, lr: float | Schedule | None = None, params: object = None,
    validation: object = None, metrics: Mapping[str, Any] | Sequence[Any] | None = None,
    targets: int = 1,
    inputs: Sequence[Variable] | None = None, monitor: str | None = None, maximise: bool = False,
    patience: int | None = None, min_delta: float = 0.0, keep_best: bool | None = None,
    average: float | None = None, checkpoint: PathLike | None = None, checkpoint_every: int = 1,
    resume: bool = False, csv: PathLike | None = None, tensorboard: PathLike | None = None,
    callbacks: Sequence[Callback] = (), on_step: Sequence[Callback] = (), amp: str | None = None,
    loss_scale: LossScale | None = None, prefetch: int = 0, progress: bool | None = None,
    distributed: object = None, mode: object = None,
) -> History:  # fmt: skip
    """Train ``net`` for ``epochs`` epochs; returns the history.

    ``criterion(output, target)`` is the loss, ``optimiser`` a function such as ``nn.optim.adam``
    (``functools.partial`` sets its options), or its name. ``data`` gives batches for each epoch:
    ``nn.batches(...)``, or anything that can be iterated again and again. Entries of a batch are
    the net's inputs, the last ``targets`` of them the criterion's (0: the inputs are targets).
    The other options are explained below.

    Raises :class:`~symdnn.errors.NanDetected` for a loss that is not finite, naming the step.
    Ctrl-C ends the step at hand (of several ranks: the same one on all, the next perhaps), leaves
    a checkpoint where ``checkpoint`` names one, and raises ``KeyboardInterrupt``. ::

        history = nn.fit(net, nn.CrossEntropyCriterion(), nn.optim.adam,
                         nn.batches((x, t), 64, shuffle=True), epochs=10, lr=1e-3,
                         validation=nn.batches((x_test, t_test), 256),
                         metrics={"accuracy": nn.metrics.accuracy()})
    """
    optimiser = _optimiser(optimiser)
    problem = _problem(net, criterion, data, metrics, targets, inputs, mode)
    problem, ranks = _on_ranks(problem, DataParallel.of(distributed))
    if ranks is not None and not ranks.is_main:
        csv, tensorboard, progress = None, None, False
    _check_numbers(lr, average, patience, min_delta, prefetch, [*callbacks, *on_step])
    logs: list[Any] = [csv_log(csv)] if csv is not None else []
    logs += [TensorBoardLog(tensorboard)] if tensorboard is not None else []
    settings = Settings(
        epochs=epochs, schedule=None if lr is None else as_schedule(lr), validation=validation,
        monitor=monitor or ("loss" if validation is None else "val_loss"), maximise=maximise,
        patience=patience, min_delta=min_delta,
        keep_best=validation is not None if keep_best is None else keep_best,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        checkpoint_every=checkpoint_every, callbacks=[*logs, *callbacks], on_step=on_step,
    )  # fmt: skip
    _check(settings, problem, resume)
    steps = build(
        problem, optimiser, net if params is None else params, with_rate=lr is not None, amp=amp,
        loss_scale=loss_scale, average=average,
    )  # fmt: skip
    run = Run(problem, steps, settings, data, ranks)
    run.begin(resume)
    try:
        _train(run, prefetch, progress)
    finally:
        for log in logs:
            getattr(log, "close", lambda: None)()
    return run.history


fit.__doc__ = f"{cleandoc(fit.__doc__ or '')}\n{_OPTIONS}"


def _on_ranks(problem: Problem, parallel: DataParallel | None) -> tuple[Problem, Ranks | None]:
    """The problem with the number of this rank's samples as an input, where ranks have different
    ones, and with the groups of ranks that train together."""
    layouts = map(layout_of, problem.net.parameters())
    groups = dict.fromkeys(x.group for x in layouts if isinstance(x, AxisLayout))
    if parallel is not None:
        groups = {parallel.ranks: None, **groups}
    problem = replace(problem, groups=tuple(g for g in groups if g.size > 1))
    if parallel is None or parallel.ranks.size == 1:
        return problem, None
    samples = TensorType("float64", ())("samples")
    return replace(problem, parallel=replace(parallel, samples=samples)), Ranks(parallel.ranks)


@checked
def measure(
    net: Module, criterion: Callable[..., Any], data: object, *,
    metrics: Mapping[str, Any] | Sequence[Any] | None = None, targets: int = 1,
    inputs: Sequence[Variable] | None = None, mode: object = None,
) -> dict[str, Any]:  # fmt: skip
    """The loss and the metrics of ``net``, in evaluation, over ``data``, by name.

    Arguments are those of :func:`fit`.
    """
    problem = _problem(net, criterion, data, metrics, targets, inputs, mode)
    return measured(build_evaluation(problem), problem, data)


def _problem(
    net: Module, criterion: Callable[..., Any], data: object,
    metrics: Mapping[str, Any] | Sequence[Any] | None, targets: int,
    inputs: Sequence[Variable] | None, mode: object,
) -> Problem:  # fmt: skip
    if not isinstance(net, Module):
        raise InputError(f"fit: wanted a module, got {net!r:.60}")
    if isinstance(criterion, type):
        raise InputError(f"fit: criterion={criterion.__name__}; wanted {criterion.__name__}()")
    arrays = first_of(data)
    variables = tuple(inputs) if inputs is not None else variables_for(arrays)
    if wrong := [v for v in variables if not isinstance(v, Variable)]:
        raise InputError(f"fit: inputs has {wrong[0]!r:.60}; wanted symbolic variables")
    if len(variables) != len(arrays) or not 0 <= targets < len(arrays):
        raise InputError(
            f"fit: a batch has {len(arrays)} arrays, for {len(variables)} inputs of which the last "
            f"{targets} are targets; wanted one input for the net at least. Batches of arrays "
            "are made by nn.batches((x, t), size)"
        )
    return Problem(net, criterion, as_metrics(metrics), variables, targets, mode)


def _optimiser(given: Any) -> Callable[..., Any]:
    """A function, by its name too."""
    names = [n for n in optim.__all__ if n[0].islower() and n not in ("ema", "matrices_only")]
    if isinstance(given, str):
        if given.lower() not in names:
            raise InputError(f"fit: optimiser={given!r}; wanted a function or {', '.join(names)}")
        made: Callable[..., Any] = getattr(optim, given.lower())
        return made
    if isinstance(given, type):
        raise InputError(
            f"fit: optimiser={given.__name__}, a class; wanted a function of (loss, params, lr) "
            f"that returns updates, such as nn.optim.adam, or {', '.join(names)}"
        )
    return given  # type: ignore[no-any-return]


def _check_numbers(
    lr: Any,
    average: float | None,
    patience: int | None,
    min_delta: float,
    ahead: int,
    functions: Sequence[Any],
) -> None:
    """Refuse options that are out of range."""
    ranges = {
        "lr": (None if callable(lr) else lr, 0, math.inf, "0 or more"),
        "average": (average, 0, 1, "from 0 to less than 1"),
        "patience": (patience, 1, math.inf, "1 or more"),
        "min_delta": (min_delta, 0, math.inf, "0 or more"),
        "prefetch": (ahead, 0, math.inf, "0 or more"),
    }
    for name, (value, least, above, wanted) in ranges.items():
        if value is not None and not least <= value < above:
            raise InputError(f"fit: {name}={value!r}; wanted {wanted}")
    for f in functions:
        if not callable(f):
            raise InputError(f"fit: callbacks and on_step: {f!r:.60}; wanted functions of a Run")


def _check(settings: Settings, problem: Problem, resume: bool) -> None:
    names = ["loss", *problem.metrics]
    if settings.validation is not None:
        names += [f"val_{n}" for n in names]
    kinds = {n: m.kind for n, m in problem.metrics.items()}
    if settings.monitor not in names or kinds.get(settings.monitor.removeprefix("val_")) == "sum":
        raise InputError(
            f"fit: monitor={settings.monitor!r}; there are {', '.join(names)}, and it must be a "
            "number"
        )
    if settings.validation is not None:
        check_repeats("validation", settings.validation)
    if "loss" in problem.metrics:
        raise InputError("fit: a metric can't be named loss: that is the criterion's")
    for name in ("epochs", "checkpoint_every"):
        if getattr(settings, name) < 1:
            raise InputError(f"fit: {name}={getattr(settings, name)}; wanted 1 or more")
    if resume and settings.checkpoint is None:
        raise InputError("fit: resume=True needs checkpoint=")


def _train(run: Run, ahead: int, progress: bool | None) -> None:
    """Epoch after epoch; an interruption leaves a checkpoint."""
    with Interrupts() as interrupts, bar(progress) as shown:
        try:
            while run.epoch < run.settings.epochs and run.history.stopped is None:
                _epoch(run, ahead, interrupts, shown)
        except KeyboardInterrupt:
            # Else a step may be half done, or other ranks may be in another one.
            if not interrupts.hard and (interrupts.ended or not run.problem.groups):
                run.save()
            raise
    run.conclude()


def _epoch(run: Run, ahead: int, interrupts: Interrupts, shown: Bar) -> None:
    count = len(run.data) if hasattr(run.data, "__len__") else None
    shown.start(run.epoch + 1, run.settings.epochs, count, run.batch)
    source: Any = run.source()
    if ahead:
        source = run_ahead(source, ahead, target=run.steps.train.stages.target)
    try:
        for batch in source:
            asked = run.train(batch, interrupts.asked)
            shown.step(run.sums.loss)
            if asked or (interrupts.asked and not run.problem.groups):
                interrupts.end()
    finally:
        if ahead:
            source.close()
    if not run.batch:
        raise InputError(
            f"fit: data gave no batch in epoch {run.epoch + 1}; it must give its batches for every "
            "epoch anew: nn.batches(...), a list, an object with __iter__"
        )
    run.finish_epoch()
    shown.row(text_of(run.history[-1]))
    if run.anyone("Ctrl-C", interrupts.asked):
        interrupts.end()
