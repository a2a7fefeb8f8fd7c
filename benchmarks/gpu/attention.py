"""float32 attention and its gradient: our tiles, written out, and PyTorch's.

    python -m benchmarks.gpu.attention [--only TEXT] [--tf32] [--kernels]

A line has milliseconds of a call without gradient and with it: ``tiles``, ``parts`` (products by
cuBLAS, and a softmax), PyTorch as it is called and captured by hand in a CUDA graph. Operands are
on the card. Errors of result and gradients are the largest ones beside float64, over the largest
value.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.gpu.device import Device, set_flags

#: Batch, heads, time, features; whether it is causal, and what mask it has: a learned one has a
#: gradient, too.
CASES = [
    (32, 12, 50, 64, False, ""), (512, 3, 49, 32, False, "mask"),
    (512, 3, 49, 32, False, "learned"), (32, 12, 197, 64, False, ""),
    (8, 12, 1024, 64, True, ""), (4, 8, 1024, 40, False, ""), (2, 16, 2048, 128, True, ""),
]  # fmt: skip
Call = Callable[[], Any]


def ours(case: tuple[Any, ...], arrays: Sequence[np.ndarray], device: Device, tiles: bool) -> list:
    """The calls without and with gradients, on arrays of the card."""
    import symdnn
    import symdnn.tensor as T
    from symdnn.ops.attention.attention import scaled_dot_product_attention
    from symdnn.opt.lower import write_out

    vs = [T.TensorType("float32", a.shape)() for a in arrays]
    mask = vs[4] if case[5] else None
    y = scaled_dot_product_attention(*vs[:3], mask, is_causal=case[4])
    leaves = [*vs[:3], *(vs[4:] if case[5] == "learned" else [])]
    grads = T.grad(None, leaves, known_grads={y: vs[3]})
    given = [device.put(a) for a in arrays]
    made = []
    with patch.object(write_out, "_gemms_are_faster", lambda *_: not tiles):
        for outs in ([y], [y, *grads]):
            used = [vs[i] for i in range(len(vs)) if i != 3 or len(outs) > 1]
            f = symdnn.function(
                [symdnn.In(v, borrow=True) for v in used],
                [symdnn.Out(o, borrow=True) for o in outs],
            )
            values = [given[i] for i in range(len(vs)) if i != 3 or len(outs) > 1]
            made.append(lambda f=f, values=values: f(*values))
    return made


def of_pytorch(case: tuple[Any, ...], arrays: Sequence[np.ndarray]) -> tuple[list[Call], list[Any]]:
    """The same calls, and result and gradients in float64."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    def calls(dtype: Any) -> list[Call]:
        q, k, v, dout, *mask = [torch.from_numpy(a).cuda().to(dtype) for a in arrays]
        learned = mask if case[5] == "learned" else []
        leaves = [x.requires_grad_() for x in (q, k, v, *learned)]
        how = {"attn_mask": mask[0] if case[5] else None, "is_causal": case[4]}

        def forward() -> Any:
            with torch.no_grad():
                return scaled_dot_product_attention(q, k, v, **how)

        def both() -> Any:
            y = scaled_dot_product_attention(q, k, v, **how)
            return [y, *torch.autograd.grad(y, leaves, dout)]

        return [forward, both]

    return calls(torch.float32), [x.detach().cpu().numpy() for x in calls(torch.float64)[1]()]


def captured(call: Call) -> Call:
    """The call as a CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def milliseconds(call: Call, sync: Call, seconds: float = 0.06) -> float:
    """The median of windows of calls, whose end is waited for."""
    for _ in range(5):
        call()
    sync()
    began = time.perf_counter()
    for _ in range(5):
        call()
    sync()
    count = max(3, int(seconds / 5 / max((time.perf_counter() - began) / 5, 1e-6)))
    found = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count):
            call()
        sync()
        found.append((time.perf_counter() - began) / count * 1e3)
    return float(np.median(found))


def line(case: tuple[Any, ...], device: Device, kernels: bool) -> str:
    """The times and errors of a case."""
    import torch

    batch, heads, length, features, causal, masked = case
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((batch, heads, length, features), "f4") for _ in range(4)]
    arrays += [rng.standard_normal((1, heads, length, length), "f4")] * bool(masked)
    peer, wanted = of_pytorch(case, arrays)
    found = []
    for name, calls in (
        ("tiles", ours(case, arrays, device, True)), ("parts", ours(case, arrays, device, False)),
    ):  # fmt: skip
        got = [device.get(r) for r in calls[1]()]
        errors = [np.abs(g - w).max() / np.abs(w).max() for g, w in zip(got, wanted)]
        ms = [milliseconds(c, device.sync) for c in calls]
        shown = " ".join(f"{e:.0e}" for e in errors)
        found.append(f"{name} {ms[0]:.4f} {ms[1]:.4f} ({shown})")
        if kernels and name == "tiles":
            from benchmarks.gpu import profile_case as profiles

            print(profiles.show(str(case), profiles.measure(calls[1], device.sync, 8), 6))
    eager = [milliseconds(c, torch.cuda.synchronize) for c in peer]
    graph = [milliseconds(captured(c), torch.cuda.synchronize) for c in peer]
    found.append(f"torch {eager[0]:.4f} {eager[1]:.4f} captured {graph[0]:.4f} {graph[1]:.4f}")
    words = [*["causal"] * causal, masked]
    return f"{case[:4]} {' '.join(words)}: {'; '.join(found)}"


def main() -> None:
    """The lines of the cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose text has this")
    parser.add_argument("--tf32", action="store_true", help="let products round, on all sides")
    parser.add_argument("--kernels", action="store_true", help="print the kernels of the tiles")
    args = parser.parse_args()
    set_flags(True)
    import torch

    import symdnn

    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    device = Device(True)
    with symdnn.config.change_flags(**{"dnn.conv.allow_tf32": args.tf32}):
        for case in CASES:
            if args.only in str(case):
                print(line(case, device, args.kernels), flush=True)


if __name__ == "__main__":
    main()
