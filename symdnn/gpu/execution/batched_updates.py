"""Horizontal fusion at the end of a step: kernels that write new values, and guarded copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.gpu.codegen.batch import Form, batched, form_of
from symdnn.gpu.codegen.launches import KernelLaunch
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.env import LaunchEnv
from symdnn.gpu.kernels.copy import guarded_copy
from symdnn.graph.variable import Apply
from symdnn.ops.core.scalar import identity_program
from symdnn.ops.lowered.transfer import HostFromGpu

_BITS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


@dataclass(frozen=True)
class UpdateLaunches:
    """The nodes from ``start`` to the copies to the host, as ``launches`` in order.

    A launch with a form has several nodes, one without a form a single node.
    """

    start: int
    launches: tuple[tuple[Form | None, tuple[Apply, ...]], ...]


def update_launches(spec: Any, memory: Any) -> UpdateLaunches:
    """The nodes that write storages, fused by form as far as their dependences allow.

    A node's level is above the levels of all earlier nodes that write its inputs, or read or write
    its outputs. Nodes of one level may run in any order, and together. A node that writes other
    memory than storages is a barrier, because the arena may have reused buffers at that point.
    """
    nodes = spec.segment.nodes
    end = len(nodes)
    while end > 0 and isinstance(nodes[end - 1].op, HostFromGpu):
        end -= 1
    start = next((i for i in range(end) if _writes_storage(nodes[i], memory)), end)
    levels: dict[int, list[Apply]] = {}
    for node, level in _levels(nodes[start:end], memory):
        levels.setdefault(level, []).append(node)
    launches: list[tuple[Form | None, tuple[Apply, ...]]] = []
    for level in sorted(levels):
        forms: dict[Form | Apply, list[Apply]] = {}
        for n in levels[level]:
            forms.setdefault(_form(n, spec, memory) or n, []).append(n)
        launches += [
            (form if isinstance(form, Form) and len(found) > 1 else None, tuple(found))
            for form, found in forms.items()
        ]
    return UpdateLaunches(start, tuple(launches))


def _levels(nodes: Sequence[Apply], memory: Any) -> Iterator[tuple[Apply, int]]:
    written: dict[int, int] = {}  # buffer -> the last level that writes it
    read: dict[int, int] = {}  # buffer -> the highest level that reads it
    floor = top = -1
    for n in nodes:
        reads = {id(memory.views[v].buffer) for v in n.inputs}
        writes = {id(memory.views[v].buffer) for v in n.outputs}
        before = [written.get(b, -1) for b in reads | writes] + [read.get(b, -1) for b in writes]
        level = max([floor, *before]) + 1
        if not _writes_storage(n, memory):
            level = floor = top + 1
        top = max(top, level)
        read.update((b, max(level, read.get(b, -1))) for b in reads)
        written.update(dict.fromkeys(writes, level))
        yield n, level


def _writes_storage(node: Apply, memory: Any) -> bool:
    return all(v in memory.stored for v in node.outputs)


def _form(node: Apply, spec: Any, memory: Any) -> Form | None:
    """The form of a node that writes only storages; None if it cannot be fused."""
    if not _writes_storage(node, memory) or any(spec.shapes.get(v) is None for v in node.outputs):
        return None
    views = [memory.views[v] for v in node.inputs]
    program_of = getattr(spec.choices[node].kernel, "program", None)
    program = None if program_of is None else program_of(spec.call(node))
    if program is None or any(v.buffer.kind == "made" for v in views):
        return None
    return form_of(program, views, [memory.views[v] for v in node.outputs])


def enqueue(env: LaunchEnv, launches: Sequence[KernelLaunch]) -> None:
    """Launch kernels of which only the environment's addresses are missing."""
    slots = np.array([env.node, env.error_word, env.workspace], np.int64)
    for k in launches:
        function = env.module(k.source, k.name)
        env.launch(function, k.grid, k.block, k.shared_bytes, (k.link(slots),))


def copy_all(env: LaunchEnv, pairs: Sequence[tuple[RawArray, RawArray]]) -> None:
    """Guarded copies (source, target), with one launch for each element size."""
    sizes: dict[int, list[tuple[RawArray, RawArray]]] = {}
    for source, target in pairs:
        dense = source.contiguous and target.contiguous and target.itemsize in _BITS
        sizes.setdefault(target.itemsize if dense else 0, []).append((source, target))
    for itemsize, found in sizes.items():
        found = [(s, t) for s, t in found if t.size]
        if itemsize == 0 or len(found) < 2:
            for source, target in found:
                guarded_copy(env, source, target)
            continue
        bits = _BITS[itemsize]
        items = [(RawArray(s.ptr, s.shape, bits), RawArray(t.ptr, t.shape, bits)) for s, t in found]
        enqueue(env, batched(Form(identity_program(bits), (False,)), items))


def copy_bytes(env: LaunchEnv, copies: Sequence[tuple[int, int, int]]) -> None:
    """Copies (target, source, bytes) by one kernel, also from and to pinned memory.

    In a CUDA graph a copy by a kernel starts some 5 us earlier than one by the copy engine.
    """
    items = [
        (RawArray(source, (nbytes,), "uint8"), RawArray(target, (nbytes,), "uint8"))
        for target, source, nbytes in copies
        if nbytes
    ]
    if items:
        form = Form(identity_program("uint8"), (False,))
        enqueue(env, batched(form, items, error_word=False))
