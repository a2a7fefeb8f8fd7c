"""Blocks of copies that write each row once: joins, splits, padding, repeated rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.cpu.elementwise.moves_ir import Move, MovePlan, move_words, moves_ir
from symdnn.cpu.launch.strided_launch import StridedBlock
from symdnn.cpu.threads import threads
from symdnn.graph.values.strides import merged

#: Bytes for which waking up another thread pays.
_BYTES_PER_THREAD = 1 << 18
#: The most pieces of a row, and its bytes. Of more or longer rows a pass for each piece is as good.
_MAX_PIECES, _MAX_ROW_BYTES = 8, 1 << 14
#: Pieces of up to this many bytes have a constant length.
_MAX_CONSTANT_BYTES = 256

#: (array that is read, the one that is written, elements, bytes from the rows' beginnings in both,
#: whether the one number of the first array is written everywhere)
Piece = tuple[int, int, int, int, int, bool]


def moves_block(
    shape: Sequence[int], steps: Sequence[Sequence[int]], itemsize: int, pieces: Sequence[Piece]
) -> StridedBlock | None:
    """The block that copies contiguous pieces of rows, for arrays with these strides along
    ``shape``.

    None where it is not better than a pass for each piece.
    """
    pieces = [p for p in pieces if p[2]]
    row = sum(p[2] for p in pieces) * itemsize
    if not 0 < len(pieces) <= _MAX_PIECES or row > _MAX_ROW_BYTES:
        return None
    sizes, found = merged(shape, steps)

    def move(p: Piece) -> Move:
        source, target, count, _, _, fill = p
        short = count * itemsize <= _MAX_CONSTANT_BYTES
        return Move(source, target, count if short else 0, fill)

    plan = MovePlan(tuple(map(move, pieces)), len(sizes), len(steps), itemsize)
    rows = prod(sizes)
    words = {"threads": threads.threads(rows * row, _BYTES_PER_THREAD), "tasks": rows, "one": 1}
    words |= {f"kn{d}": n for d, n in enumerate(sizes)}
    for a, own in enumerate(found):
        words |= {f"a{a}.k{d}": step for d, step in enumerate(own)}
    for i, (_, _, count, source, target, _) in enumerate(pieces):
        words |= {f"m{i}.from": source, f"m{i}.to": target, f"m{i}.n": count}
    names = move_words(plan)
    at = [names.index(f"a{a}") for a in range(len(steps))]
    return StridedBlock(threads.kernel(moves_ir, plan), [words.get(n, 0) for n in names], at)


def pieces_block(whole: Any, pieces: Sequence[Any], axis: int, split: bool) -> StridedBlock | None:
    """The block of (\\*inputs, \\*outputs) that joins pieces along an axis, or splits them.

    None also if the axes after it are not contiguous.
    """
    arrays = [whole, *pieces] if split else [*pieces, whole]
    if not all(_is_dense(a, axis) for a in arrays):
        return None
    behind, found, at = prod(whole.shape[axis + 1 :]), list[Piece](), 0
    for k, piece in enumerate(pieces):
        count = piece.shape[axis] * behind
        offset = at * whole.itemsize
        found.append(
            (0, k + 1, count, offset, 0, False) if split
            else (k, len(pieces), count, 0, offset, False)
        )  # fmt: skip
        at += count
    steps = [a.strides[:axis] for a in arrays]
    return moves_block(whole.shape[:axis], steps, whole.itemsize, found)


def rolled_block(x: Any, first: int, out: Any, axis: int) -> StridedBlock | None:
    """The block of (x, out) that writes the ``first`` elements of each line behind the others."""
    if not (x.size and _is_dense(x, axis) and _is_dense(out, axis)):
        return None
    size = x.itemsize * prod(x.shape[axis + 1 :])
    rest = x.shape[axis] - first
    pieces: list[Piece] = [
        (0, 1, rest * size // x.itemsize, first * size, 0, False),
        (0, 1, first * size // x.itemsize, 0, rest * size, False),
    ]
    return moves_block(x.shape[:axis], [x.strides[:axis], out.strides[:axis]], x.itemsize, pieces)


def _is_dense(a: Any, axis: int) -> bool:
    """Whether the axes from ``axis`` on are contiguous."""
    step = a.itemsize
    for n, s in zip(reversed(a.shape[axis:]), reversed(a.strides[axis:])):
        if n > 1 and s != step:
            return False
        step *= n
    return True
