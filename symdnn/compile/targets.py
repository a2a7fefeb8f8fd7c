"""From a flag or a user's word to a target and its runtime. The one place that loads a target."""

from __future__ import annotations

import importlib
from typing import Any

from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.graph.runtime import Runtime
from symdnn.graph.target import Target

__all__ = ["load_runtime", "resolve_target"]


def resolve_target(wanted: Target | str | None = None) -> Target:
    """The target to compile for: given, or by the flag ``device`` (``auto``: what is there)."""
    if isinstance(wanted, Target):
        return wanted
    if wanted is not None:
        return Target.parse(wanted)
    device = str(config.device)
    if device in ("auto", "cpu"):
        return Target("cpu")
    raise SymdnnError(
        f"device={device}: this version of symdnn has no CUDA runtime. "
        "Use device=cpu, or build for a described GPU with Mode(target='cuda:sm_90')"
    )


def load_runtime(target: Target) -> Runtime:
    """The runtime of a target's device, loaded on first use."""
    if target.kind != "cpu":
        raise SymdnnError(f"no runtime for {target} in this version; it can be built, not run")
    module: Any = importlib.import_module("symdnn.cpu.runtime")
    return module.runtime()  # type: ignore[no-any-return]
