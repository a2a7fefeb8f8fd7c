"""A program of samples: its functions, and the command line that runs them by name."""

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from symdnn.config import config

F = TypeVar("F", bound=Callable[..., Any])


class Samples(dict[str, Callable[..., Any]]):
    """Functions by name, in the order of the program, whose docstring is ``about``."""

    def __init__(self, about: str) -> None:
        super().__init__()
        self.about = about

    def add(self, function: F) -> F:
        """Enter a function into the list that `main` runs."""
        self[function.__name__] = function
        return function

    def main(self, argv: list[str] | None = None) -> int:
        """Run the samples that the command line names, or all, on the device that it names."""
        parser = argparse.ArgumentParser(description=self.about)
        parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda1, ... (cpu)")
        parser.add_argument("samples", nargs="*", help=f"which to run (all): {', '.join(self)}")
        options = parser.parse_args(argv)
        with config.change_flags(device=options.device):
            for name in options.samples or self:
                print(f"{name}: {str(self[name].__doc__).splitlines()[0]}")
                self[name]()
        return 0


def rand(*shape: int, seed: int = 0) -> np.ndarray:
    """A normal sample in float32, the same in each run."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")
