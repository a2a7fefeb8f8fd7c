"""Which of cuDNN's algorithms runs a convolution, and with how much workspace.

The wanted one is a word of the flags ``dnn.conv.algo_*`` (the op's own, a hint's, the flag's), or
the number of cuDNN's enum. A named algorithm is taken if cuDNN takes it for these shapes within the
workspace limit. Otherwise the flag ``dnn.conv.on_unsupported`` says whether that is an error; the
flags' defaults (``small``, ``none``) always give way. Then, and for the words that search, cuDNN's
heuristics are asked, fastest first; what is left is every other algorithm in turn.

``deterministic=more`` leaves only algorithms that give the same bits each time. Where cuDNN takes
an algorithm for cross-correlation only, the kernels are mirrored by a copy.

The default ``none`` of the gradient in the kernels gives way to ``deterministic`` for 16-bit types:
it adds partial sums up in the result itself, each rounded to 16 bits. Over 65543 images of float16
it was 3 percent off on an H200 (cuDNN 9.19), ``deterministic`` 0.02 percent.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.errors import CudnnError
from symdnn.gpu.conv_signature import DIRECTIONS, ConvSignature, Direction
from symdnn.gpu.cudnn_device import ask
from symdnn.graph.type import numpy_dtype

__all__ = [
    "DIRECTIONS", "SEARCH", "ConvAlgorithm", "ConvSignature", "Direction", "UnsupportedAlgorithm",
    "choose", "wanted_algorithm",
]  # fmt: skip

#: Words that ask for a search. Until timing is there, all of them take cuDNN's heuristics.
SEARCH = ("guess_once", "guess_on_shape_change", "time_once", "time_on_shape_change")


class UnsupportedAlgorithm(CudnnError):
    """cuDNN does not take the algorithm that was named for the shapes at hand."""


@dataclass(frozen=True)
class ConvAlgorithm:
    """The choice: cuDNN's number, the flags' word, workspace, and why not what was wanted.

    ``flip_by_copy``: the kernels are mirrored beforehand, cuDNN correlates.
    """

    number: int
    word: str
    workspace_bytes: int
    deterministic: bool
    source: str
    flip_by_copy: bool = False
    instead_of: str = ""

    def __str__(self) -> str:
        more = [self.source, f"workspace {self.workspace_bytes} bytes"]
        more += ["kernels mirrored by a copy"] * self.flip_by_copy
        more += [f"instead of {self.instead_of}"] * bool(self.instead_of)
        return f"{self.word} ({', '.join(more)})"


def wanted_algorithm(direction: str, op_algo: Any, hint: Any) -> str | int:
    """The op's word, which lowering settled, else the hint's, else the flag's."""
    for value in (op_algo, hint):
        if value is not None:
            return value if isinstance(value, str) else operator.index(value)
    return str(getattr(config.dnn.conv, f"algo_{direction}"))


@lru_cache(maxsize=4096)
def choose(signature: ConvSignature, device: int | None) -> ConvAlgorithm:
    """The algorithm for a call on a device; an estimate where ``device`` is None.

    Raises :class:`UnsupportedAlgorithm` where the wanted one can't be had and nothing else may be
    taken, or where cuDNN has none at all.
    """
    if device is None:
        return _described(signature)
    return ask(lambda handle: _Search(signature, handle).run(), _described(signature))


def _described(s: ConvSignature) -> ConvAlgorithm:
    """What would be tried first, its workspace estimated."""
    direction = DIRECTIONS[s.direction]
    word = direction.default if s.wanted in SEARCH else _word(direction, s.wanted)
    if (s.deterministic and word in direction.random) or (
        s.rounds_sums and word == direction.default
    ):
        word = "deterministic"
    number = direction.algorithms.get(word, s.wanted if isinstance(s.wanted, int) else 0)
    fixed = word not in direction.random
    return ConvAlgorithm(number, word, estimated_bytes(s, word), fixed, "not asked of a device")


def _word(direction: Direction, wanted: str | int) -> str:
    if isinstance(wanted, int):
        return direction.word(wanted)
    if wanted not in direction.algorithms:
        known = ", ".join([*direction.algorithms, *SEARCH])
        raise UnsupportedAlgorithm(
            f"algorithm {wanted!r} of cudnnConvolution{direction.stem}: wanted one of {known}"
        )
    return wanted


def estimated_bytes(s: ConvSignature, word: str) -> int:
    """A rough size of an algorithm's workspace, for plans of described devices."""
    item = numpy_dtype(s.dtype).itemsize
    columns = prod(s.w[1:]) * prod(s.y[2:]) * item
    padded = prod(2 * n + k for n, k in zip(s.x[2:], s.w[2:])) * 8
    spectra = padded * (s.x[0] * s.x[1] + s.w[0] * s.w[1] + s.y[0] * s.y[1])
    tiles = 4 * item * (prod(s.x) + prod(s.y) + 4 * prod(s.w))
    sizes = {
        "small": 4 * prod(s.w[1:]) + 1024, "large": columns, "fft": spectra, "fft_tiling": spectra,
        "winograd_non_fused": tiles,
    }  # fmt: skip
    return sizes.get(word, 0)


class _Search:
    """Asks a device about one signature, gathering why each candidate was not taken."""

    def __init__(self, signature: ConvSignature, handle: Any) -> None:
        self.signature, self.handle = signature, handle
        self.direction = DIRECTIONS[signature.direction]
        self.refused: list[str] = []

    def run(self) -> ConvAlgorithm:
        """The first candidate that cuDNN takes within the limits."""
        wanted = self.signature.wanted
        if wanted in SEARCH:
            return self._first(self._guesses(), "") or self._none()
        word = _word(self.direction, wanted)
        number = self.direction.algorithms.get(word, wanted)
        found = None
        if self.signature.rounds_sums and word == self.direction.default:
            other = self.direction.algorithms["deterministic"]
            found = self._first([(other, "for its sums in 32 bits")], word)
        found = found or self._first([(int(number), "as asked")], "")
        if found is not None:
            return found
        if self.signature.on_unsupported == "raise" and word != self.direction.default:
            raise self._unsupported(f"algorithm {word!r} can't be used")
        return self._first(self._guesses(), word) or self._none()

    def _guesses(self) -> Iterator[tuple[int, str]]:
        """Numbers of algorithms, most promising first, and where each comes from."""
        given = set()
        for perf in self._heuristics():
            given.add(int(perf.algo))
            yield int(perf.algo), "cuDNN's heuristics"
        for number in self.direction.algorithms.values():
            if number not in given:
                yield number, "the next that works"

    def _heuristics(self) -> Sequence[Any]:
        found: list[Any] = []
        for s in self._forms():
            first, second, convolution, result = s.descriptors()
            try:
                perfs = self.direction.heuristics(
                    self.handle, first.handle, second.handle, convolution.handle, result.handle,
                    len(self.direction.algorithms),
                )  # fmt: skip
            except CudnnError as error:
                self.refused.append(f"heuristics: {_short(error)}")
                continue
            found += [p for p in perfs if int(p.status) == 0]
        return found

    def _forms(self) -> Iterator[ConvSignature]:
        """The call as it is, and as a cross-correlation with mirrored kernels."""
        yield self.signature
        if self.signature.flip:
            yield replace(self.signature, flip=False)

    def _first(self, candidates: Any, instead_of: str) -> ConvAlgorithm | None:
        for number, source in candidates:
            for s in self._forms():
                found = self._try(s, number, source, instead_of)
                if found is not None:
                    return found
        return None

    def _try(
        self, s: ConvSignature, number: int, source: str, instead_of: str
    ) -> ConvAlgorithm | None:
        word = self.direction.word(number)
        fixed = word not in self.direction.random
        if s.deterministic and not fixed:
            self.refused.append(f"{word}: it is not deterministic")
            return None
        first, second, convolution, result = s.descriptors()
        try:
            nbytes = operator.index(
                self.direction.workspace(
                    self.handle, first.handle, second.handle, convolution.handle, result.handle,
                    number,
                )
            )  # fmt: skip
        except CudnnError as error:
            self.refused.append(f"{word}: {_short(error)}")
            return None
        if s.workspace_limit and nbytes > s.workspace_limit:
            self.refused.append(f"{word}: {nbytes} bytes of workspace, {s.workspace_limit} allowed")
            return None
        by_copy = s.flip != self.signature.flip
        return ConvAlgorithm(number, word, nbytes, fixed, source, by_copy, instead_of)

    def _none(self) -> ConvAlgorithm:
        raise self._unsupported("cuDNN has no algorithm for this convolution")

    def _unsupported(self, what: str) -> UnsupportedAlgorithm:
        error = UnsupportedAlgorithm(
            f"{what}: {'; '.join(dict.fromkeys(self.refused))}. Choose another by the flag "
            f"dnn.conv.algo_{self.signature.direction}, or set dnn.conv.on_unsupported=fallback"
        )
        error.add_note(f"  {self.signature}")
        return error


def _short(error: Exception) -> str:
    return str(error).splitlines()[0]
