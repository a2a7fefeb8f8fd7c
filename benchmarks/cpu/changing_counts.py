"""Functions of elements by a mask that chooses another number of them at each call.

    python -m benchmarks.cpu.changing_counts --peers

Processor time of a call in microseconds, the median of rounds over masks drawn before.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

#: Texts of a vector ``x`` and a mask ``m``, for all libraries alike.
PROGRAMS = {
    "sum": "x[m].sum()", "mean": "x[m].mean()", "var": "x[m].var()", "elements": "x[m] * 2 + 1",
    "largest": "x[m].max()", "dot": "x[m] @ x[m]", "by value": "x[x > 0].sum()",
    "squares": "((x[m] - x[~m].mean()) ** 2).sum()",
}  # fmt: skip
SIZES, MASKS, ROUNDS = (1000, 10000, 1000000), 40, 5


def measured(call: Callable[..., Any], arguments: list[Any]) -> float:
    """Microseconds of a call."""
    times = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        for pair in arguments:
            call(*pair)
        times.append((time.process_time() - begun) / len(arguments))
    return sorted(times)[ROUNDS // 2] * 1e6


def libraries(text: str, peers: bool) -> dict[str, tuple[Callable[..., Any], Any]]:
    """By name: the function, and what makes its arguments of NumPy's arrays."""
    import symdnn
    import symdnn.tensor as T

    body: Any = eval(f"lambda x, m: {text}")  # of the texts above
    x, m = T.vector("x", "float64"), T.vector("m", "bool")
    f = symdnn.function([x, m], body(x, m), on_unused_input="ignore")
    found: dict[str, tuple[Callable[..., Any], Any]] = {"symdnn": (f, lambda a: a)}
    found["NumPy"] = body, lambda a: a
    if peers:
        import torch  # type: ignore[import-not-found, unused-ignore]

        torch.set_num_threads(1)
        found["PyTorch"] = body, torch.tensor
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true", help="beside PyTorch, too")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    for n in SIZES:
        draws = [(rng.normal(size=n), rng.random(n) < rng.uniform(0.1, 0.9)) for _ in range(MASKS)]
        for name, text in PROGRAMS.items():
            row = []
            for library, (call, of) in libraries(text, options.peers).items():
                given = [tuple(map(of, pair)) for pair in draws]
                for pair in given * (1 + 40000 // n):
                    call(*pair)  # until its code is compiled
                row.append(f"{library} {measured(call, given):9.1f}")
            print(f"{name:10s} of {n:8d}  " + "  ".join(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
