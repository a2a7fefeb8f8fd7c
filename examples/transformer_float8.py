"""A transformer layer in float8 and int8 beside 16 bits: errors against float32, and times.

The four products of a layer with weights run in 8 bits where the target's tensor cores or VNNI
multiply them: float8 on a GPU of sm_89 or newer, int8 there and on a CPU. Attention itself, softmax
and normalisation stay floats. Elsewhere the same rounded numbers are multiplied in floats.
"""

import argparse
import time
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.config import config


def milliseconds(x: Any, y: Any, value: Any) -> float:
    """The mean time of a call, of values that stay on the device."""
    given, result = symdnn.shared(value), symdnn.shared(value)
    run = symdnn.function([], updates=[(result, y)], givens={x: given})
    wait = symdnn.function([], result[0, 0, 0])
    times = []
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(10):
            run()
        wait()
        times.append((time.perf_counter() - start) * 1e2)
    return min(times[1:])


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Print errors and times; returns the relative errors."""
    on_gpu = str(config.device).startswith("cuda")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--length", type=int, default=512 if on_gpu else 64)
    parser.add_argument("--batch", type=int, default=4 if on_gpu else 1)
    options = parser.parse_args(argv)
    nn.init.seed(0)
    shape = (options.batch, options.length, options.width)
    layer = nn.TransformerEncoderLayer(
        options.width, options.heads, 4 * options.width, dropout=0.0, batch_first=True
    )
    x = T.tensor("float32", shape, name="x")
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(shape).astype("float32") for _ in range(3)]
    y = layer.evaluate()(x)
    expressions = {"float32": y, "bfloat16": y}
    for kind in ("float8_e4m3fn", "int8"):
        quantized = nn.quantize(layer, data[:2], inputs=[x], kind=kind, method="percentile")
        expressions[kind] = quantized(x)
    want = np.asarray(symdnn.function([x], y)(data[2]))
    errors = {}
    for word, z in expressions.items():
        if word == "bfloat16" and not on_gpu:
            continue
        with config.change_flags(amp="off" if word == "float32" or not on_gpu else "bf16"):
            off = np.asarray(symdnn.function([x], z)(data[2])).astype("float32") - want
            ms = milliseconds(x, z, data[2])
        errors[word] = float(np.sqrt((off**2).mean() / (want**2).mean()))
        print(f"{word}: relative error {errors[word]:.2e}, {ms:.3f} ms", flush=True)
    return errors


if __name__ == "__main__":
    main()
