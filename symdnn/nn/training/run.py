"""One training: its state, a step, the end of an epoch, and how it is saved."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.distributed.place import rank
from symdnn.errors import InputError, NanDetected
from symdnn.graph.typing import Array, Scalar
from symdnn.graph.variable import Shared
from symdnn.io.index import is_index
from symdnn.nn.schedule import Schedule
from symdnn.nn.training import checkpoint
from symdnn.nn.training.history import History
from symdnn.nn.training.metrics import Metric
from symdnn.nn.training.ranks import Ranks
from symdnn.nn.training.steps import Problem, Steps, as_list
from symdnn.sharding.axis import AxisLayout
from symdnn.sharding.storage import Layout, layout_of


@dataclass(frozen=True)
class Settings:
    """The options of ``fit`` for the loop."""

    epochs: int
    schedule: Schedule | None
    validation: Any
    monitor: str
    maximise: bool
    patience: int | None
    min_delta: float
    keep_best: bool
    checkpoint: Path | None
    checkpoint_every: int
    callbacks: Sequence[Callable[[Any], Any]]
    on_step: Sequence[Callable[[Any], Any]]


class Sums:
    """The loss and metrics of the batches so far."""

    def __init__(self, metrics: Mapping[str, Metric], state: Mapping[str, Any] | None = None):
        self.metrics = {"loss": Metric(lambda loss: loss), **metrics}
        self.state: dict[str, Any] = {n: m.start() for n, m in self.metrics.items()}
        for name, value in (state or {}).items():
            kind = self.metrics[name].kind
            self.state[name] = np.asarray(value) if kind == "sum" else list(value)

    def add(self, values: Sequence[Any], size: int) -> None:
        """Take in the outputs of a batch's function."""
        left = list(values)
        for name, metric in self.metrics.items():
            count = 2 if metric.kind == "ratio" else 1
            own, left = left[:count], left[count:]
            self.state[name] = metric.add(self.state[name], own, size)

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self.metrics["loss"].result(self.state["loss"]))

    def results(self, prefix: str = "") -> dict[str, Any]:
        """The measures by name."""
        return {prefix + n: m.result(self.state[n]) for n, m in self.metrics.items()}


class Watch:
    """The measure that says which epoch was best, and when none has been for too long."""

    def __init__(self, maximise: bool, least_change: float) -> None:
        self.maximise, self.least_change = maximise, least_change
        self.best: float | None = None
        self.bad = 0

    def observe(self, value: float) -> bool:
        """Whether it is the best so far."""
        change = self.least_change if self.best is not None else 0.0
        if self.maximise:
            better = self.best is None or value > self.best + change
        else:
            better = self.best is None or value < self.best - change
        if better and not math.isnan(value):
            self.best, self.bad = float(value), 0
            return True
        self.bad += 1
        return False


class Run:
    """A training; callbacks get it.

    ``epoch`` counts the epochs that are done, ``batch`` the batches of the present one, ``step``
    all batches. ``loss`` is the last batch's, ``rate`` its learning rate, ``history`` has the
    rows. ``net`` and ``updates`` (its ``state``: the optimiser's) may be looked at and changed.
    """

    def __init__(
        self, problem: Problem, steps: Steps, settings: Settings, data: Any,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        self.ranks = ranks
        self.problem, self.steps, self.settings, self.data = problem, steps, settings, data
        self.net, self.updates = problem.net, steps.updates
        self.history = History()
        self.epoch = self.batch = self.step = 0
        self.loss = self.rate = math.nan
        self.sums = Sums(problem.metrics)
        self.watch = Watch(settings.maximise, settings.min_delta)
        self.best: dict[str, Any] = {}
        self._since = time.perf_counter()

    def stop(self, why: str) -> None:
        """Let the training end after this epoch."""
        self.history.stopped = why

    # -- steps -------------------------------------------------------------------------------

    def source(self) -> Iterator[Any]:
        """The batches that are left of this epoch, of several ranks this one's parts of them."""
        if self.ranks is not None:
            return self.ranks.source(self.data, self.epoch, self.batch)
        at = getattr(self.data, "at", None)
        if at is not None:
            return iter(at(self.epoch, self.batch))
        return islice(iter(self.data), self.batch, None)

    def train(self, batch: Any, asked: bool = False) -> bool:
        """One step; whether a rank is ``asked`` to stop.

        Raises :class:`NanDetected` for a loss that is no finite number.
        """
        count = [] if self.ranks is None else [batch[-1]]
        arrays = as_list(batch if self.ranks is None else batch[:-1], len(self.problem.inputs))
        rate = []
        if self.settings.schedule is not None and self.steps.rate_type is not None:
            self.rate = self._rate(self.settings.schedule)
            rate = [self.steps.rate_type(self.rate)]
        own = [np.float32(asked)] if self.problem.groups else []
        found = self.steps.train(*arrays, *count, *own, *rate)
        if own:
            *found, asked = found
        self.loss = float(found[0])
        self.step, self.batch = self.step + 1, self.batch + 1
        if not math.isfinite(self.loss):
            raise NanDetected(self._complaint())
        if not count or count[0]:  # else it has no sample of this batch
            self.sums.add(found, int(arrays[0].shape[0]))
        for each in self.settings.on_step:
            each(self)
        return bool(asked)

    def anyone(self, what: str, own: bool) -> bool:
        """Whether something is true of a rank of those that train together."""
        for group in self.problem.groups:
            own = any(Ranks(group).agreed(what, own))
        return own

    def _rate(self, schedule: Schedule) -> float:
        given = schedule(self.step)
        try:
            return float(given)
        except (TypeError, ValueError):
            raise InputError(
                f"fit: lr gave {given!r:.60} in step {self.step}; wanted a number"
            ) from None

    def _complaint(self) -> str:
        rate = "" if math.isnan(self.rate) else f" at the learning rate {self.rate:g}"
        path = self.settings.checkpoint
        have = f"; {path} has the last checkpoint" if path and path.exists() else ""
        return (
            f"fit: the loss is {self.loss} in step {self.step - 1} (epoch {self.epoch + 1}, batch "
            f"{self.batch - 1}){rate}. Try a lower rate, clip_norm=, or look for the first NaN "
            f"with mode=symdnn.NanGuardMode(){have}"
        )

    # -- the end of an epoch -----------------------------------------------------------------

    def finish_epoch(self) -> None:
        """Measure, record, keep the best values, call the callbacks, save."""
        if self.ranks is not None:
            self.sums = Sums(self.problem.metrics, self.ranks.merged(self.sums.state))
        row = {"epoch": self.epoch + 1, "step": self.step, **self.sums.results()}
        if not math.isnan(self.rate):
            row["rate"] = self.rate
        if self.settings.validation is not None:
            row |= self._validated()
        now = time.perf_counter()
        row["seconds"], self._since = now - self._since, now
        self.history.rows.append(row)
        self.epoch, self.batch, self.sums = self.epoch + 1, 0, Sums(self.problem.metrics)
        self._watch(float(row[self.settings.monitor]))
        for each in self.settings.callbacks:
            each(self)
        if self.ranks is not None:
            why = [w for w in self.ranks.agreed("stop", self.history.stopped) if w is not None]
            self.history.stopped = why[0] if why else None
        every, last = self.settings.checkpoint_every, self.history.stopped is not None
        if last or self.epoch % every == 0 or self.epoch == self.settings.epochs:
            self.save()

    def _validated(self) -> dict[str, Any]:
        given = (self.steps.evaluate, self.problem, self.settings.validation, "val_", self.ranks)
        if self.steps.average is None:
            return measured(*given)
        with self.steps.average.swapped():
            return measured(*given)

    def _watch(self, measure: float) -> None:
        if self.watch.observe(measure):
            self.history.best_epoch = self.epoch
            if self.settings.keep_best:
                self.best = self._values()
        elif self.settings.patience is not None and self.watch.bad >= self.settings.patience:
            text = f"{self.settings.monitor} was best in epoch {self.history.best_epoch}"
            self.stop(f"{text}, {self.watch.bad} epochs ago")
        observe = getattr(self.settings.schedule, "observe", None)
        if observe is not None:
            observe(measure)

    def _values(self) -> dict[str, Any]:
        average = self.steps.average
        return self.net.state_dict() if average is None else average.state_dict()

    def conclude(self) -> None:
        """Give the net the best values, or the averaged ones."""
        if self.settings.keep_best and self.best:
            self.net.load_state_dict(self.best)
        elif self.steps.average is not None:
            self.net.load_state_dict(self.steps.average.state_dict())

    def begin(self, resume: bool) -> None:
        """Start with equal values on all ranks, or go on from the checkpoint."""
        path = self.settings.checkpoint
        there = resume and path is not None and path.exists()
        if self.ranks is not None:
            variables = self.variables()
            if self.updates.parts:  # each rank has its own
                del variables["optimiser"]
            self.ranks.begin(variables, self.data)
            there = self.ranks.check_checkpoint(there)
        if there:
            self.load()

    # -- files -------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint, where there is one."""
        if self.settings.checkpoint is None:
            return
        progress, state = self._progress(), self._optimiser_state()
        if self.ranks is not None:
            progress["random_by_rank"] = self.ranks.random_states(self.steps.random)
            progress["sums"] = self.ranks.merged(self.sums.state)
        groups = {**self.variables(), "best": self.best, "optimiser": state}
        if is_index(self.settings.checkpoint):
            checkpoint.save_together(self.settings.checkpoint, groups, progress, self._writers())
            return
        groups |= {name: _read(groups[name]) for name in ("net", "optimiser")}
        if self.writes:
            checkpoint.save(self.settings.checkpoint, groups, progress)

    def _writers(self) -> checkpoint.Writers:
        """The ranks that write a checkpoint in parts: those of different data, and of those that
        share out dimensions the first; where all have the same data, all."""
        axes = [x for x in self._layouts() if isinstance(x, AxisLayout)]
        first = all(x.index == 0 for x in axes)
        if self.ranks is not None:
            number = self.ranks.index if first else None
            return checkpoint.Writers(self.ranks.group.size, number, self.ranks.agreed)
        if not axes:
            return checkpoint.Writers(1, 0, lambda what, value: [value])
        together = Ranks(axes[0].group)
        return checkpoint.Writers(together.group.size, together.index, together.agreed)

    def _layouts(self) -> list[Layout]:
        found = (layout_of(v) for v in self.net.named_parameters().values())
        return [x for x in found if x is not None]

    @property
    def writes(self) -> bool:
        """Whether this rank writes files: the first of those that train together, and of those
        that share out parameters."""
        first = all(x.group.ranks[0] == rank() for x in self._layouts())
        return first and (self.ranks is None or self.ranks.is_main)

    def load(self) -> None:
        """Go on from the checkpoint."""
        assert self.settings.checkpoint is not None, "fit asks before"
        variables = self.variables()
        if self.updates.parts:
            del variables["optimiser"]
        found, others = checkpoint.load(self.settings.checkpoint, variables)
        if self.updates.parts:
            self.updates.load_state_dict(others["optimiser"])
        self.epoch, self.batch, self.step = found["epoch"], found["batch"], found["step"]
        if self.ranks is not None:
            self.ranks.set_random(found.get("random_by_rank"), self.steps.random)
        if self.ranks is None or self.ranks.is_main:  # sums are merged at the end of the epoch
            self.sums = Sums(self.problem.metrics, found["sums"])
        self.watch.best, self.watch.bad = found["best"], found["bad"]
        rows = [{k: _as_array(v) for k, v in row.items()} for row in found["history"]]
        self.history.rows = rows
        self.history.best_epoch, self.history.stopped = found["best_epoch"], found["stopped"]
        self.rate = found["rate"]
        self.best = others.get("best", {})
        for thing, name in ((self.data, "data"), (self.settings.schedule, "schedule")):
            take = getattr(thing, "load_state_dict", None)
            if found[name] is not None and take is not None:
                take(found[name])

    def _optimiser_state(self) -> Mapping[str, Any]:
        """The optimiser's state for a file; all ranks call this."""
        return self.updates.state_dict() if self.updates.parts else self.updates.state

    def variables(self) -> dict[str, Mapping[str, Any]]:
        """All variables of the training, by group and name."""
        net = {**self.net.named_parameters(), **self.net.named_buffers()}
        return {"net": net, "optimiser": self.updates.state, "random": self.steps.random}

    def _progress(self) -> dict[str, Any]:
        schedule = getattr(self.settings.schedule, "state_dict", None)
        data = getattr(self.data, "state_dict", None)
        return {
            "epoch": self.epoch, "batch": self.batch, "step": self.step, "sums": self.sums.state,
            "best": self.watch.best, "bad": self.watch.bad, "rate": self.rate,
            "history": self.history.rows, "best_epoch": self.history.best_epoch,
            "stopped": self.history.stopped, "schedule": schedule() if schedule else None,
            "data": data() if data else None,
        }  # fmt: skip


def measured(
    evaluate: Any, problem: Problem, data: Any, prefix: str = "", ranks: Ranks | None = None
) -> dict[str, Any]:
    """Loss and metrics over ``data``, by name; ``ranks`` measure a part of each batch each."""
    sums, at, empty = Sums(problem.metrics), getattr(data, "at", None), True
    for batch in data if at is None else at(0):
        arrays, empty, count = as_list(batch, len(problem.inputs)), False, 1
        samples = []
        if ranks is not None:
            arrays, count = ranks.part(arrays)
            samples = [np.float64(count)]
        # Also without a sample: others may wait for its parameters.
        values = evaluate(*arrays, *samples)
        if count:
            sums.add(values, int(arrays[0].shape[0]))
    if empty:
        raise InputError("fit: the data to measure on has no batch")
    if ranks is not None:
        sums = Sums(problem.metrics, ranks.merged(sums.state))
    return sums.results(prefix)


def _read(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Values of variables that ranks keep together, the others as they are; all ranks call this."""
    kept = {n for n, v in variables.items() if isinstance(v, Shared) and layout_of(v) is not None}
    return {n: v.get_value() if n in kept else v for n, v in variables.items()}


def _as_array(value: Any) -> Array | Scalar:
    return np.asarray(value) if isinstance(value, list) else value
