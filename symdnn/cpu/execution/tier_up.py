"""Tier-up: compile what was too little to compile for, once a plan has been called often.

By then the calls have taken longer than compiling does. Compiled steps also run in groups
(:mod:`symdnn.cpu.execution.fastcall_groups`), in which calling one takes 0.01 us instead of 1.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.graph.kernel import Call, Kernel, kernels_for
from symdnn.graph.variable import Apply

#: Calls of a plan after which its small kernels are compiled.
HOT_CALLS = 1000
#: Calls of a plan after which those kernels take their place whose code is in the cache: loading it
#: takes some 10 ms, while compiling takes 100 to 500. The worker process compiles the others, and
#: the plan looks again whenever it was called twice as often.
WARM_CALLS = 10


#: Scratch memory of a kernel that it allocates itself, since the plan has none for it.
_MAX_OWN_SCRATCH_BYTES = 1 << 20


def compiled_kernels(spec: Any, views: Container[Apply]) -> dict[Apply, Kernel]:
    """Compiled kernels for nodes of a plan that NumPy or a library runs since they are small.

    ``views`` are the nodes that no kernel runs. Empty with ``deterministic=more``, since compiled
    functions round differently, and if ``cpu.compile`` is not ``auto``. In
    :func:`~symdnn.cpu.compiler.jit.only_cached` kernels whose code is missing are left out.
    """
    if str(config.cpu.compile) != "auto" or str(config.deterministic) == "more":
        return {}
    found = {}
    with config.change_flags(**{"cpu.compile": "always"}):
        for node, choice in spec.choices.items():
            if choice.kernel.traits.replaceable and node not in views:
                kernel = _compiled_kernel(spec.call(node), choice.kernel)
                if kernel is not None:
                    found[node] = kernel
    return found


def _compiled_kernel(call: Call, before: Kernel) -> Kernel | None:
    """The first compiled kernel in front of ``before`` that takes a call and can be bound."""
    for kernel in kernels_for(type(call.op), "cpu"):
        if kernel is before:
            return None
        if not kernel.traits.compiled:
            continue
        try:
            if (
                kernel.refuses(call) is None
                and kernel.workspace_bytes(call) <= _MAX_OWN_SCRATCH_BYTES
            ):
                kernel.bind(call)
                return kernel
        except SymdnnError:
            continue
    return None
