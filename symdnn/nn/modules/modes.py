"""The choice of cuDNN's algorithms in convolution modules: cudnn.torch's methods."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, SupportsIndex

from symdnn.errors import InputError
from symdnn.flag_types import is_new_way
from symdnn.flags import FLAGS
from symdnn.graph.origin import NO_HINTS, Hints

#: The algorithm of ``benchmark``: all algorithms are measured, for each shape.
BENCHMARK = "time_on_shape_change"
#: The algorithm of ``fastest``: cuDNN's first guess, for each shape, with any workspace.
FASTEST = "guess_on_shape_change"

_DIRECTIONS = {"fmode": "fwd", "bdmode": "bwd_data", "bwmode": "bwd_filter"}
_ENUMS = {"fmode": "Fwd", "bdmode": "BwdData", "bwmode": "BwdFilter"}


class ConvolutionModes:
    """``fastest``, ``benchmark``, ``setMode`` and ``resetMode``, for a module with ``hints``.

    All of them set the module's ``hints``, which have precedence over the flags
    ``dnn.conv.algo_*``. :meth:`setMode` has precedence over ``benchmark``, and that over
    ``fastest``. They affect expressions that are built afterwards.
    """

    hints: Hints = NO_HINTS
    fastest_mode: bool = False
    benchmark_mode: bool = False
    fmode: Any = None
    bdmode: Any = None
    bwmode: Any = None

    def fastest(self, mode: bool = True) -> Any:
        """Take the fastest by cuDNN's guess, without a limit of workspace; returns the module."""
        self.fastest_mode = bool(mode)
        return self._choose()

    def benchmark(self, mode: bool = True) -> Any:
        """Measure all algorithms for each new shape, and take the fastest."""
        self.benchmark_mode = bool(mode)
        return self._choose()

    def setMode(self, fmode: object = None, bdmode: object = None, bwmode: object = None) -> Any:
        """The algorithms of the forward pass, the gradient in the input, and that in the weight.

        Each is a number of cuDNN's enum, its name (``"CUDNN_CONVOLUTION_FWD_ALGO_GEMM"``), or a
        word of the flags ``dnn.conv.algo_*``; None leaves it as it is. A transposed convolution's
        forward pass is ``bdmode``. Raises :class:`~symdnn.errors.InputError` for anything else.
        """
        given = {"fmode": fmode, "bdmode": bdmode, "bwmode": bwmode}
        chosen = {k: self._algorithm(k, v) for k, v in given.items() if v is not None}
        for name, value in chosen.items():
            setattr(self, name, value)
        return self._choose()

    def resetMode(self) -> Any:
        """Forget what :meth:`setMode` set."""
        self.fmode = self.bdmode = self.bwmode = None
        return self._choose()

    def _choose(self) -> Any:
        """Set the hints by the modes."""
        searched = BENCHMARK if self.benchmark_mode else FASTEST if self.fastest_mode else None
        algos: dict[str, Any] = {
            f"algo_{direction}": searched if getattr(self, mode) is None else getattr(self, mode)
            for mode, direction in _DIRECTIONS.items()
        }
        limit = 0 if self.fastest_mode else None
        self.hints = replace(self.hints, **algos, workspace_limit=limit)
        return self

    def _algorithm(self, mode: str, value: object) -> str | int:
        """A number or a word that the hint takes."""
        from symdnn.gpu.binding import libcudnn_table

        enum: Any = getattr(libcudnn_table, f"cudnnConvolution{_ENUMS[mode]}Algo_t")
        count = len(enum) - 1  # its last value is the number of the others
        words = FLAGS[f"dnn.conv.algo_{_DIRECTIONS[mode]}"].choices
        if isinstance(value, str) and (value in words or is_new_way(value, words)):
            return value
        number = enum.__members__.get(value, -1) if isinstance(value, str) else value
        if isinstance(number, SupportsIndex) and not isinstance(number, bool):
            number = operator.index(number)
            if 0 <= number < count:
                return number
        raise InputError(
            f"{type(self).__name__}.setMode: {mode}={value!r}; wanted a number from 0 to "
            f"{count - 1}, a name of {enum.__name__}, or one of {', '.join(words)}"
        )
