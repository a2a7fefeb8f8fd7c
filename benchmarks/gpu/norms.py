"""Norms of rows on a GPU beside PyTorch, with residual sums and casts, forward and backward.

``python -m benchmarks.gpu.norms`` prints for each case the microseconds of symdnn, of PyTorch
eager, and of a copy that moves as many bytes, and the largest error against float64; ``--tiny``
checks the results of small ones anywhere.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.gpu.device import Device, set_flags

__all__ = ["FORMS", "SHAPES", "main"]

SHAPES = [
    ((8192, 768), "float32"), ((4096, 768), "bfloat16"), ((4096, 4096), "float32"),
    ((4096, 4096), "bfloat16"), ((512, 16384), "float32"),
]  # fmt: skip
#: What is computed of x, a residual r, a cotangent dy, scale and shift.
FORMS = (
    "layer", "layer of a sum, cast", "layer gradient", "layer gradient, added, cast", "rms",
    "rms gradient",
)  # fmt: skip
#: Inputs of this size in all are used in turn, so that none is in the cache.
_ROTATED_BYTES = 256 << 20
_EPSILON = 1e-5


def _norm(form: str, T: Any, x: Any, scale: Any, shift: Any) -> Any:
    from symdnn.ops.nn.normalization import layer_norm

    if form.startswith("layer"):
        return layer_norm(x, scale, shift, epsilon=_EPSILON)
    wide = x.astype("float32")
    mean = T.mean(wide * wide, axis=-1, keepdims=True)
    return (wide / T.sqrt(mean + np.float32(_EPSILON)) * scale).astype(x.dtype)


def _symdnn(form: str, T: Any, x: Any, r: Any, dy: Any, scale: Any, shift: Any) -> list[Any]:
    from symdnn import grad

    x = x + r if "sum" in form else x
    y = _norm(form, T, x, scale, shift)
    if "gradient" not in form:
        return [x, T.cast(y, "bfloat16")] if "cast" in form else [y]
    dx, *rest = grad(None, [x, scale, *([shift] if "layer" in form else [])], known_grads={y: dy})
    if "added" in form:
        return [dx + r, *([T.cast(dx + r, "bfloat16")] if "cast" in form else []), *rest]
    return [dx, *rest]


def _torch(form: str, torch: Any, x: Any, r: Any, dy: Any, scale: Any, shift: Any) -> list[Any]:
    f, own = torch.nn.functional, (x.shape[-1],)
    x = x + r if "sum" in form else x.detach().requires_grad_("gradient" in form)
    g, b = scale.to(x.dtype), shift.to(x.dtype)
    if "gradient" in form:
        g, b = g.requires_grad_(), b.requires_grad_()
    layer = form.startswith("layer")
    y = f.layer_norm(x, own, g, b, _EPSILON) if layer else f.rms_norm(x, own, g, _EPSILON)
    if "gradient" not in form:
        return [x, y.bfloat16()] if "cast" in form else [y]
    return [y, x, g, *([b] if layer else [])]


def _torch_call(form: str, torch: Any, held: Sequence[Any]) -> Any:
    """A call in PyTorch; of a gradient, the backward pass alone."""
    found = _torch(form, torch, *held)
    if "gradient" not in form:
        return lambda: _torch(form, torch, *held)
    y, *wrt = found

    def backward() -> Any:
        dx, *_ = torch.autograd.grad(y, wrt, held[2], retain_graph=True)
        total = dx + held[1] if "added" in form else dx
        return (total, total.bfloat16()) if "added" in form else total

    return backward


def _measured(
    device: Device, form: str, shape: tuple[int, ...], dtype: str, torch: Any, profile: bool = False
) -> str:
    import symdnn
    import symdnn.tensor as T
    from benchmarks.gpu.symdnn_nets import symdnn_dtype

    rng = np.random.default_rng(1)
    whole = [rng.standard_normal(shape, np.float32).astype(symdnn_dtype(dtype)) for _ in range(3)]
    arrays = [*whole, *(rng.standard_normal(shape[1:], np.float32) + 1 for _ in range(2))]
    variables = [T.TensorType(a.dtype.name, (None, *a.shape[1:])[-a.ndim :])() for a in arrays[:3]]
    variables += [T.TensorType("float32", shape[1:])() for _ in range(2)]
    outputs = _symdnn(form, T, *variables)
    outs = [symdnn.Out(y, borrow=True) for y in outputs]
    f = symdnn.function(variables, outs, on_unused_input="ignore")
    results = [device.host(v) for v in f(*map(device.put, arrays))]
    wide = [T.TensorType("float64", v.type.shape)() for v in variables]
    exact = symdnn.function(
        wide, _symdnn(form, T, *wide), mode=symdnn.Mode(target="cpu"), on_unused_input="ignore"
    )(*(a.astype(np.float64) for a in arrays))
    error = max(
        np.abs(a.astype(np.float64) - b).max() / np.abs(b).max() for a, b in zip(results, exact)
    )
    copies = max(1, _ROTATED_BYTES // sum(a.nbytes for a in arrays)) if device.on_gpu else 1
    sets = itertools.cycle([[device.put(a) for a in arrays] for _ in range(copies)])
    us = 1e3 * float(device.time(lambda: f(*next(sets)))["ms"])
    peer = copy = float("nan")
    if device.on_gpu:
        read = 1 + ("sum" in form or "added" in form) + ("gradient" in form)
        nbytes = (read * arrays[0].nbytes + sum(r.nbytes for r in results)) // 2
        half = [device.put(np.empty(nbytes, np.uint8)) for _ in range(2)]
        copy = 1e3 * float(device.time(lambda: device.copy(*half, nbytes))["ms"])
    if torch is not None and device.on_gpu:
        kind = getattr(torch, dtype)
        held = [torch.from_numpy(a.view(np.int16) if a.itemsize == 2 else a).cuda() for a in arrays]
        held[:3] = [a.view(kind) for a in held[:3]]
        peer = 1e3 * float(device.time(_torch_call(form, torch, held))["ms"])
    name = f"{form} {'x'.join(map(str, shape))}"
    line = f"{name:42} {dtype:9} {us:8.1f} {peer:8.1f} {copy:8.1f}  error {error:.1e}"
    if profile and device.on_gpu:
        from benchmarks.gpu import profile_case

        traced = profile_case.measure(lambda: f(*next(sets)), device.sync, 8)
        line += "\n" + profile_case.show("", traced, 6)
    return line


def main() -> None:
    """Print a line for each form, shape and dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small arrays on the CPU, to check it")
    parser.add_argument("--case", default="", help="only forms whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.05, help="timed for about so long each")
    parser.add_argument("--profile", action="store_true", help="the kernels of each, by CUPTI")
    given = parser.parse_args()
    set_flags(not given.tiny)
    device = Device(not given.tiny, given.seconds)
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    print(f"{'case':42} {'dtype':9} {'us':>8} {'torch':>8} {'copy':>8}")
    for form, (shape, dtype) in itertools.product(FORMS, SHAPES):
        if given.case in form:
            if "added" in form and dtype == "bfloat16":  # the cast is the sum itself
                form = form.removesuffix(", cast")
            small = tuple(min(n, 96) for n in shape) if given.tiny else shape
            print(_measured(device, form, small, dtype, torch, given.profile), flush=True)
            device.cleanup()


if __name__ == "__main__":
    main()
