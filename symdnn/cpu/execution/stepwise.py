"""Runs the steps of a plan one by one: first runs, which compile, and runs that are watched."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from symdnn.cpu.compiler import jit
from symdnn.cpu.execution.step_codegen import PlanStep
from symdnn.cpu.launch.launch import as_launch
from symdnn.cpu.reference.kernels import uncompiled_launch
from symdnn.errors import KernelCompileError
from symdnn.graph.evaluate import note_failure
from symdnn.graph.runtime import Watcher

__all__ = ["launch_all", "wait_for_code"]


def launch_all(
    spec: Any, steps: Sequence[PlanStep], values: list[Any], watcher: Watcher | None
) -> None:
    """Run steps on a list of values, to which views and values of unknown shape are added."""
    step: PlanStep | None = None
    try:
        for step in steps:
            inputs = [values[i] for i in step.inputs]
            report = watcher if step.node.outputs else None  # not of checks
            if report is not None:
                report(step.node, inputs, None)
            if step.by_view:
                values[step.outputs[0]] = step.launch(*inputs)[0]
            else:
                outputs = [values[o] for o in step.outputs]
                results = _launch_or_fall_back(spec, step, inputs, outputs, values)
                if results is not None:
                    for o, result in zip(step.outputs, results):
                        values[o] = result
            if report is not None:
                report(step.node, inputs, [values[o] for o in step.outputs])
    except Exception as error:
        if step is not None:
            note_failure(error, step.node, [values[i] for i in step.inputs])
        raise


def _launch_or_fall_back(
    spec: Any, step: PlanStep, inputs: Any, outputs: Any, values: Sequence[Any]
) -> Any:
    """Run a step; by NumPy's kernel if LLVM fails to compile its own."""
    more = () if step.workspace is None else (values[step.workspace],)
    try:
        return step.launch(inputs, outputs, *more)
    except KernelCompileError as error:
        step.launch = as_launch(uncompiled_launch(spec.call(step.node), error))
        step.workspace = None
        return step.launch(inputs, outputs)


def wait_for_code(steps: Sequence[PlanStep], values: Sequence[Any]) -> None:
    """Wait for code of these steps, which was queued: what LLVM refuses is left to their runs."""
    missing: list[jit.Code] = []
    for step in steps:
        if step.by_view or step.launch.prepare is None:
            continue
        operands = [[values[i] for i in at] for at in (step.inputs, step.outputs)]
        with contextlib.suppress(Exception), jit.only_cached(missing):
            step.launch.prepare(*operands)
    for code in missing:
        with contextlib.suppress(KernelCompileError):
            assert code.function
