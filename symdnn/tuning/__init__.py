"""Autotuning: candidates are checked and timed, and choices stored on disk, for all kernels.

::

    symdnn.tuning.override(f, "conv3*", algo="fft_tiling")
"""

from symdnn.tuning.overrides import override

__all__ = ["override"]
