"""``symdnn demo``: train a convolutional network on real handwritten digits and show the result."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]

GOAL_ACCURACY = 0.985


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; the exit status is 0 when the test accuracy reached 98.5 %.

    ``gpt`` as the first argument runs that of a language model (:mod:`symdnn.demo.gpt`).
    """
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["gpt"]:
        from symdnn.demo import gpt

        return gpt.main(given[1:])
    options = _parser().parse_args(given)
    from symdnn.demo.data import load_digits

    try:
        digits = load_digits()
    except ImportError:
        print("the demo needs scikit-learn and matplotlib: pip install 'symdnn[viz]'")
        return 2
    if options.load is not None:
        return _evaluate(options.load, digits)
    return _train(options, digits)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="symdnn demo",
        description="Train a convolutional network on handwritten digits, and show the result.",
        epilog="symdnn demo gpt trains a small language model: symdnn demo gpt --help.",
    )
    parser.add_argument("--seeds", type=_count, default=1, help="train this many times (1)")
    parser.add_argument("--epochs", type=_count, default=30, help="passes over the data (30)")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-output"), help="folder of results (demo-output)"
    )
    parser.add_argument("--load", type=Path, help="evaluate parameters saved by an earlier run")
    return parser


def _count(text: str) -> int:
    """A positive integer of the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted an integer of at least 1, got {text!r}")
    return int(text)


def _train(options: Any, digits: Any) -> int:
    from symdnn.demo.pictures import draw
    from symdnn.io import save_parameters

    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{len(digits.train_x)} training and {len(digits.test_x)} test images of 8x8, 10 classes")
    results = [_train_one(digits, seed, options) for seed in range(options.seeds)]
    accuracies = [r.test_accuracy[-1] for r in results]
    median = float(np.median(accuracies))
    last = results[-1]
    _print_lowering(last.network.train)
    metadata = {"network": "symdnn demo", "seed": str(last.seed)}
    files = [options.out / "parameters.npz", options.out / "parameters.safetensors"]
    for path in files:
        save_parameters(path, last.network.parameters, metadata)
    files += draw(last, digits, options.out)
    print("wrote " + ", ".join(map(str, files)))
    if options.seeds > 1:
        shown = ", ".join(f"{100 * a:.2f}" for a in accuracies)
        print(f"test accuracy of {options.seeds} seeds: {shown} %; median {100 * median:.2f} %")
    print(f"test accuracy {100 * median:.2f} % (goal {100 * GOAL_ACCURACY} %)")
    return 0 if median >= GOAL_ACCURACY or options.epochs < 10 else 1


def _train_one(digits: Any, seed: int, options: Any) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from symdnn.demo.training import train

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task(f"seed {seed}", total=options.epochs)

        def on_epoch(result: Any) -> None:
            text = f"seed {seed} loss {result.train_loss[-1]:.4f}"
            text += f" test {100 * result.test_accuracy[-1]:.2f} %"
            progress.update(task, advance=1, description=text)

        result = train(digits, seed, options.epochs, on_epoch=on_epoch)
    print(
        f"seed {seed}: compiled in {result.compile_seconds:.1f} s, trained in "
        f"{result.seconds:.1f} s, test accuracy {100 * result.test_accuracy[-1]:.2f} %"
    )
    return result


def _print_lowering(function: Any) -> None:
    """A line for each kind of op with its kernels; integers of the host in one line."""
    print("the training step was lowered to:")
    counts: dict[tuple[str, str], int] = {}
    first = [row for row in function.lowering_report().rows if row.plan in (0, None)]
    for row in first:
        op = "sizes, bounds, counters" if row.how == "host" else row.op.partition("{")[0]
        key = (op, row.how)
        counts[key] = counts.get(key, 0) + 1
    for (op, how), count in sorted(counts.items()):
        print(f"  {count:4d} x {op:28s} {how}")


def _evaluate(path: Path, digits: Any) -> int:
    from symdnn.demo.network import build
    from symdnn.io import load_parameters

    network = build(0)
    load_parameters(path, into=network.parameters)
    loss, right = network.evaluate(digits.test_x, digits.test_y)
    accuracy = int(right) / len(digits.test_y)
    print(f"{path}: test loss {float(loss):.4f}, test accuracy {100 * accuracy:.2f} %")
    return 0 if accuracy >= GOAL_ACCURACY else 1
