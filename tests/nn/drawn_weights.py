"""Values of parameters and images that are the same here and in make_torch_models.py.

They follow from the name and the shape alone, so nothing but outputs needs to be stored.
"""

import math
import zlib

import numpy as np


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A value in a range that keeps activations of order one."""
    rng = np.random.RandomState(zlib.crc32(name.encode()))  # its stream never changes
    u = rng.uniform(-1, 1, shape)
    last = name.rpartition(".")[2]
    if last == "running_var" or (last == "weight" and len(shape) == 1):
        value = 1 + 0.5 * u
    elif len(shape) > 1:
        value = u * math.sqrt(6 / math.prod(shape[1:]))
    else:
        value = 0.1 * u
    return value.astype("float32")


def images(*shape: int) -> np.ndarray:
    """Input of a network."""
    return np.random.RandomState(3).normal(size=shape).astype("float32")


def direction(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A vector that a gradient is projected on."""
    return np.random.RandomState(zlib.crc32(name.encode()) + 1).normal(size=shape)


def names_hash(shapes: dict[str, tuple[int, ...]]) -> int:
    """One number for the names and shapes of a state dict, in any order."""
    text = "\n".join(f"{n} {tuple(s)}" for n, s in sorted(shapes.items()))
    return zlib.crc32(text.encode())
