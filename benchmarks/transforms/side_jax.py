"""The side of JAX in :mod:`benchmarks.transforms.functions`; it imports no symdnn."""

from __future__ import annotations

import argparse
import os
from typing import Any


class Jax:
    """The functions of a case, of JAX."""

    def __init__(self, device: str) -> None:
        os.environ["JAX_PLATFORMS"] = device
        import jax
        import jax.numpy as jnp

        self._jax = jax
        self.jit, self.grad = jax.jit, jax.grad
        self.fori_loop, self.while_loop = jax.lax.fori_loop, jax.lax.while_loop
        self.scan, self.associative_scan = jax.lax.scan, jax.lax.associative_scan
        self.tanh, self.dot, self.matmul = jnp.tanh, jnp.dot, jnp.matmul

    def placed(self, args: Any) -> Any:
        """The arguments on the device."""
        return self._jax.device_put(args)

    def wait(self, found: Any) -> None:
        """Until the result is there."""
        self._jax.block_until_ready(found)


def main() -> None:
    """Print the numbers of all cases."""
    from benchmarks.transforms.functions import timed

    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--case", action="append")
    options = parser.parse_args()
    print(timed(options.case, Jax(options.device)))


if __name__ == "__main__":
    main()
