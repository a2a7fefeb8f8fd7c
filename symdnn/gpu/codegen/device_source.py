"""CUDA C sources: files of ``gpu/codegen/src``, specialised by macros."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_FOLDER = Path(__file__).parent / "src"

#: The C type of each dtype of TensorType that kernels compute with.
CTYPES = {
    "bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "uint16": "u16", "uint32": "u32", "uint64": "u64", "float16": "f16", "bfloat16": "bf16",
    "float32": "float", "float64": "double",
}  # fmt: skip


def numbered(inputs: Sequence[T], outputs: Sequence[T]) -> list[tuple[str, T]]:
    """Operands with their names in device code: x0, x1, ... and y0, ..."""
    reads = [(f"x{i}", a) for i, a in enumerate(inputs)]
    return reads + [(f"y{i}", a) for i, a in enumerate(outputs)]


@cache
def text_of(name: str) -> str:
    """The text of a file in ``src``."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def specialised(*files: str, **macros: object) -> str:
    """The source: libraries (``.cuh``) of ``files``, then the macros, then kernels (``.cu``)."""
    return _specialised(files, tuple(macros.items()))


@cache
def _specialised(files: tuple[str, ...], macros: tuple[tuple[str, object], ...]) -> str:
    defined = "".join(f"#define {name} {value}\n" for name, value in macros)
    libraries = "".join(text_of(f) for f in ("common.cuh", *files) if f.endswith(".cuh"))
    return libraries + defined + "".join(text_of(f) for f in files if f.endswith(".cu"))


def index_lines(name: str, count: int, prefix: str) -> list[str]:
    """Statements for the indices ``<prefix>0``, ... of the linear index ``name``."""
    lines = [f"  Count left_{prefix} = {name};"] if count > 1 else []
    for d in reversed(range(1, count)):
        lines.append(f"  const Count {prefix}{d} = left_{prefix} % (Count)p.{prefix}{d};")
        lines.append(f"  left_{prefix} /= (Count)p.{prefix}{d};")
    return [*lines, f"  const Count {prefix}0 = {f'left_{prefix}' if count > 1 else name};"]
