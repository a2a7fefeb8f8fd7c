"""The end of a step: kernels that write new values, many in one launch, and guarded copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.gpu.array import DeviceArray
from symdnn.gpu.batch import Form, batched, form_of
from symdnn.gpu.env import LaunchEnv
from symdnn.gpu.k_copy import guarded_copy
from symdnn.gpu.launches import KernelLaunch
from symdnn.graph.variable import Apply
from symdnn.ops.scalar import identity_program
from symdnn.ops.transfer import HostFromGpu

__all__ = ["Trailing", "copy_all", "enqueue", "trailing"]

_BITS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


@dataclass(frozen=True)
class Trailing:
    """Nodes from ``start`` to the copies to the host: ``groups`` are launched as one each, before
    ``rest``, which keeps its order."""

    start: int
    groups: tuple[tuple[Form, tuple[Apply, ...]], ...]
    rest: tuple[Apply, ...]


def trailing(spec: Any, memory: Any) -> Trailing:
    """The nodes that write storages, those of one form together where no other minds.

    A node may join others when none of them, and none of the rest, reads what it writes or writes
    what it reads. It then runs earlier than planned, which is safe: what it reads was made before,
    and it writes only storages.
    """
    nodes = spec.segment.nodes
    end = len(nodes)
    while end > 0 and isinstance(nodes[end - 1].op, HostFromGpu):
        end -= 1
    start = next((i for i in range(end) if _writes_storage(nodes[i], memory)), end)
    tail = nodes[start:end]
    readers = _by_buffer(tail, memory, lambda n: n.inputs)
    writers = _by_buffer(tail, memory, lambda n: n.outputs)
    forms: dict[Form, list[Apply]] = {}
    for n in tail:
        form = _form(n, spec, memory)
        alone = all(
            others.get(id(memory.views[v].buffer), {n}) <= {n}
            for operands, others in ((n.outputs, readers), (n.inputs, writers))
            for v in operands
        )
        if form is not None and alone:
            forms.setdefault(form, []).append(n)
    groups = tuple((f, tuple(found)) for f, found in forms.items() if len(found) > 1)
    grouped = {n for _, found in groups for n in found}
    return Trailing(start, groups, tuple(n for n in tail if n not in grouped))


def _writes_storage(node: Apply, memory: Any) -> bool:
    return all(v in memory.stored for v in node.outputs)


def _by_buffer(nodes: Sequence[Apply], memory: Any, operands: Any) -> dict[int, set[Apply]]:
    found: dict[int, set[Apply]] = {}
    for n in nodes:
        for v in operands(n):
            found.setdefault(id(memory.views[v].buffer), set()).add(n)
    return found


def _form(node: Apply, spec: Any, memory: Any) -> Form | None:
    """The form of a node that writes nothing but storages."""
    if not _writes_storage(node, memory) or any(spec.shapes.get(v) is None for v in node.outputs):
        return None
    views = [memory.views[v] for v in node.inputs]
    program = spec.choices[node].kernel.program(spec.call(node))
    if program is None or any(v.buffer.kind == "made" for v in views):
        return None
    return form_of(program, views, [memory.views[v] for v in node.outputs])


def enqueue(env: LaunchEnv, launches: Sequence[KernelLaunch]) -> None:
    """Launch kernels whose parameters have all addresses but the environment's."""
    slots = np.array([env.node, env.error_word, env.workspace], np.int64)
    for k in launches:
        function = env.module(k.source, k.name)
        env.launch(function, k.grid, k.block, k.shared_bytes, (k.link(slots),))


def copy_all(env: LaunchEnv, pairs: Sequence[tuple[DeviceArray, DeviceArray]]) -> None:
    """Guarded copies (source, target), those of one element size in one launch."""
    sizes: dict[int, list[tuple[DeviceArray, DeviceArray]]] = {}
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
        items = [
            (DeviceArray(s.ptr, s.shape, bits), DeviceArray(t.ptr, t.shape, bits)) for s, t in found
        ]
        enqueue(env, batched(Form(identity_program(bits), (False,)), items))
