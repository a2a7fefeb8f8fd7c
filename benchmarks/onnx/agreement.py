"""Whether symdnn and ONNX Runtime agree on exported models, at several sizes, and saved again.

python benchmarks/onnx/agreement.py FOLDER --runtime /path/to/python-with-onnxruntime

FOLDER is that of architectures.py. For each model the largest difference, over the largest number
of an output: at the sizes of the export, at larger batches and lengths, at sizes of 1; and of the
model that symdnn.onnx.save wrote again, which ONNX Runtime runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def runtime(model: str, inputs: str, outputs: str) -> None:
    """Run a model by ONNX Runtime on each set of inputs; sets that it refuses have no outputs."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    data, found = np.load(inputs), {}
    for k in sorted({n.partition("_")[0] for n in data.files}):
        try:
            values = session.run(None, {n: data[f"{k}_{i}"] for i, n in enumerate(names)})
        except Exception:  # sizes that the export can't have
            continue
        found.update({f"{k}_{i}": v for i, v in enumerate(values)})
    np.savez(outputs, **found)


def by_runtime(python: str, model: Path, inputs: dict[str, np.ndarray], folder: Path):
    np.savez(folder / "in.npz", **inputs)
    command = [python, __file__, "--runtime-of", str(model), "in.npz", "out.npz"]
    subprocess.run(command, cwd=folder, check=True, stderr=subprocess.DEVNULL)
    return dict(np.load(folder / "out.npz"))


def sized(graph, arrays: list[np.ndarray], change: int) -> list[np.ndarray]:
    """Inputs whose open sizes are larger by ``change``, or 1 for -1."""
    found = []
    for port, array in zip(graph.inputs.values(), arrays):
        for axis, d in enumerate(port.shape):
            if not isinstance(d, int):
                n = array.shape[axis]
                size = 1 if change < 0 else n + change * (32 if axis > 1 and array.ndim > 3 else 1)
                array = np.take(array, np.arange(size) % n, axis)
        found.append(array)
    return found


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference over the largest number, of rows in order where order is free."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.size == 0:
        return 0.0
    x, y = a.astype("float64"), b.astype("float64")
    return float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-6))


def compared(path: Path, python: str, folder: Path) -> list[str]:
    import symdnn.onnx

    f = symdnn.onnx.compile(path)
    data = np.load(path.with_suffix(".npz"))
    arrays = [data[f"i{k}"] for k in range(len(data.files))]
    sets = {"s0": arrays}
    if f.graph.dims:
        sets |= {"s1": sized(f.graph, arrays, 1), "s2": sized(f.graph, arrays, -1)}
    inputs = {f"{k}_{i}": a for k, values in sets.items() for i, a in enumerate(values)}
    wanted = by_runtime(python, path, inputs, folder)
    found = []
    for k, values in sets.items():
        if f"{k}_0" in wanted:
            outs = f(*values).values()
            worst = max(difference(o, wanted[f"{k}_{i}"]) for i, o in enumerate(outs))
            found.append(f"{worst:.1e}")
    try:
        again = folder / "again.onnx"
        graph = f.graph
        symdnn.onnx.save(graph.expressions, again, inputs=list(graph.variables.values()))
        values = by_runtime(python, again, inputs, folder)
        worst = max(difference(values[n], w) for n, w in wanted.items() if n[:2] != "s2")
        found.append(f"again {worst:.1e}")
    except (symdnn.errors.SymdnnError, subprocess.CalledProcessError) as error:
        found.append(f"again: {str(error)[:120]}".replace("\n", " "))
    return found


def main() -> None:
    if "--runtime-of" in sys.argv:
        runtime(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runtime", default=sys.executable)
    args = parser.parse_args()
    for path in sorted(args.folder.glob("*.onnx")):
        if args.names and not any(n in path.stem for n in args.names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                text = "  ".join(compared(path, args.runtime, Path(folder)))
            except Exception as error:
                text = f"{type(error).__name__}: {str(error)[:160]}".replace("\n", " ")
        print(f"{path.stem:44} {text}", flush=True)


if __name__ == "__main__":
    main()
