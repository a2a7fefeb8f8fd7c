"""Measured choices: one way to try candidates, one store on disk, for every family of kernels.

::

    symdnn.tuning.override(f, "conv3*", algo="fft_tiling")
"""

from symdnn.tuning.overrides import override

__all__ = ["override"]
