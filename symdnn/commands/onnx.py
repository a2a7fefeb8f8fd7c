"""``symdnn onnx``: inspect, run, time and write models in ONNX's format.

symdnn onnx info net.onnx                 inputs, outputs, parameters, ops
symdnn onnx info net.onnx --kernels       and which kernels run it on this machine
symdnn onnx run net.onnx --input x=x.npy  the outputs, as .npy files with --output
symdnn onnx run net.onnx --layers         and the time of each layer
symdnn onnx bench net.onnx --size batch=8 the time of a call, beside ONNX Runtime if it is installed
symdnn onnx tune net.onnx --size batch=8  measures choices of kernels, which later runs find on disk
symdnn onnx export f.symdnn net.onnx      a function that symdnn.save wrote
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.commands import tune
from symdnn.compile.report.profile import FunctionProfile
from symdnn.config import config
from symdnn.errors import SymdnnError


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        "onnx", help="look at, run, time and write models in ONNX's format", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parts = parser.add_subparsers(required=True, metavar="ACTION")
    for name, run, text in (
        ("info", _info, "what is in a file"),
        ("run", _run, "the outputs for inputs of files, or random ones"),
        ("bench", _bench, "the time of a call, beside ONNX Runtime"),
        ("tune", _tune, "measure choices of kernels, and what they gain"),
    ):
        part = parts.add_parser(name, help=text)
        part.add_argument("path", help="a model in ONNX's format")
        part.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy",
                          help="an input; others are random")  # fmt: skip
        part.add_argument("--size", action="append", default=[], metavar="NAME=NUMBER",
                          help="a size that the file leaves open (default: 1)")  # fmt: skip
        part.add_argument("--dtype", help="what float32 of the file becomes")
        part.set_defaults(run=_by_nodes(run))
        if name == "info":
            part.add_argument("--kernels", action="store_true", help="compile it and list kernels")
            part.add_argument("--picture", metavar="FILE", help="draw it (svg, png, pdf, html)")
        if name == "run":
            part.add_argument("--output", metavar="FOLDER", help="write each output as .npy")
        if name in ("run", "bench"):
            part.add_argument("--layers", action="store_true", help="the time of each layer")
            part.add_argument("--profile", metavar="FILE", help="write these times to a file")
        if name in ("bench", "tune"):
            part.add_argument("--calls", type=int, default=20, help="calls that are timed")
    export = parts.add_parser("export", help="write a saved function in ONNX's format")
    export.add_argument("path", help="a file of symdnn.save")
    export.add_argument("target", help="the file to write")
    export.add_argument("--opset", type=int, help="the opset (default: as in onnx.save)")
    export.set_defaults(run=_export)


def _by_nodes(run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """``run`` with reports that name the file's nodes: no line of a program made the graph."""

    def running(args: argparse.Namespace) -> None:
        with config.change_flags(**{"traceback.limit": 0}):
            run(args)

    return running


def _room() -> Any:
    """``symdnn.onnx``, which is imported only where a command needs it."""
    return importlib.import_module("symdnn.onnx")


def _pairs(given: list[str], what: str) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise SymdnnError(f"--{what} {text}: wanted NAME=VALUE")
        found[name] = value
    return found


def _values(graph: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Inputs: arrays of files, or random arrays of the chosen sizes."""
    files, sizes = _pairs(args.input, "input"), _pairs(args.size, "size")
    if unknown := (set(files) - set(graph.inputs)) | (set(sizes) - set(graph.dims)):
        raise SymdnnError(
            f"no {', '.join(sorted(unknown))}: inputs are {', '.join(graph.inputs)}, open sizes "
            f"{', '.join(graph.dims) or 'none'}"
        )
    rng = np.random.default_rng(0)
    found = {}
    for name, port in graph.inputs.items():
        if name in files:
            found[name] = np.load(files[name], allow_pickle=False)
        elif port.form == "tensor" and port.shape is not None:
            shape = [d if isinstance(d, int) else int(sizes.get(str(d), 1)) for d in port.shape]
            found[name] = _random(rng, port.kind, shape)
        elif port.form != "optional":
            raise SymdnnError(f"give the input {port} as --input {name}=FILE.npy")
    return found


def _random(rng: Any, kind: str, shape: list[int]) -> Any:
    if "int" in kind:
        return rng.integers(0, 2, shape).astype(kind)
    return (rng.random(shape) < 0.5) if kind == "bool" else rng.random(shape).astype(kind)


def _compiled(args: argparse.Namespace, profile: Any = None) -> tuple[Any, dict[str, Any]]:
    f = _room().compile(args.path, dtype=args.dtype, profile=profile)
    return f, _values(f.graph, args)


def _layers(args: argparse.Namespace, calls: int) -> None:
    """Print or write the times of a profiled function: it runs step by step, so they are longer."""
    if not (args.layers or args.profile):
        return
    profile = FunctionProfile(Path(args.path).stem)
    f, values = _compiled(args, profile)
    f(**values)
    profile.forget()
    for _ in range(calls):
        f(**values)
    profile.name_kernels(plan for made in f.functions for plan in made.plans())
    if args.layers:
        print(profile.layers())
    if args.profile:
        profile.save(args.profile)
        print(f"times are in {args.profile}")


# -- info -----------------------------------------------------------------------------------------


def _info(args: argparse.Namespace) -> None:
    graph = _room().load(args.path, dtype=args.dtype)
    versions = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in graph.opsets.items())
    print(f"{graph.name or args.path}: opsets {versions}")
    for port in graph.inputs.values():
        print(f"  input   {port}")
    for name in graph.outputs:
        print(f"  output  {name}")
    count = sum(p.get_value(borrow=True).size for p in graph.parameters.values())
    print(f"  {len(graph.parameters)} parameters with {count:,} elements")
    ops = Counter(n.op_type for n in graph.proto.graph.node)
    print(f"  {sum(ops.values())} nodes: " + ", ".join(f"{n} {op}" for op, n in ops.most_common()))
    if args.kernels or args.picture:
        f = _room().compile(graph)
        f(**_values(graph, args))
        (function,) = f.functions
        if args.kernels:
            print(function.lowering_report())
        if args.picture:
            from symdnn.printing import pydotprint

            pydotprint(function, args.picture)
            print(f"  drawn in {args.picture}")


# -- run and bench --------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> None:
    f, values = _compiled(args)
    for name, value in f(**values).items():
        if not isinstance(value, np.ndarray):
            print(f"{name}: {value}")
            continue
        print(f"{name}: {value.dtype}{value.shape}\n{value}")
        if args.output:
            folder = Path(args.output)
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{name.replace('/', '_')}.npy", value)
    _layers(args, 1)


def _median(call: Callable[[], Any], calls: int) -> float:
    """Milliseconds of a call: the median, after three that are not counted."""
    found = []
    for k in range(calls + 3):
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e3)
        if k == 2:
            found.clear()
    return statistics.median(found)


def _bench(args: argparse.Namespace) -> None:
    start = time.perf_counter()
    f, values = _compiled(args)
    f(**values)
    print(f"loaded, compiled and run once in {time.perf_counter() - start:.2f} s")
    print(f"symdnn        {_median(lambda: f(**values), args.calls):10.3f} ms")
    _layers(args, args.calls)
    if importlib.util.find_spec("onnxruntime") is None:
        print("onnxruntime is not installed")
        return
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(args.path, providers=["CPUExecutionProvider"])
    print(f"onnxruntime   {_median(lambda: session.run(None, values), args.calls):10.3f} ms")


def _tune(args: argparse.Namespace) -> None:
    def timed() -> tuple[float, str]:
        f, values = _compiled(args)
        time = _median(lambda: f(**values), args.calls)
        return time, f.functions[0].stages.target.kind

    guessed, kind = timed()
    chosen, _ = tune.measured(timed)
    print(f"by guesses    {guessed:10.3f} ms")
    print(f"by measuring  {chosen:10.3f} ms")
    rooms = ("onednn.",) if kind == "cpu" else ("dnn.", "gpu.")
    flags = ",".join(f"{n}={v}" for n, v in tune.MEASURING.items() if n.startswith(rooms))
    print(f"to use what was measured: SYMDNN_FLAGS={flags}")


# -- export ---------------------------------------------------------------------------------------


def _export(args: argparse.Namespace) -> None:
    from symdnn.saving import load

    model = _room().save(load(args.path), args.target, opset=args.opset)
    print(f"{args.target}: {len(model.graph.node)} nodes, opset {model.opset_import[0].version}")
