"""Conditions that are checked in a call, under Theano's module path ``T.opt``."""

from symdnn.ops.core.gradient_control import Assert, assert_
from symdnn.ops.core.gradient_control import assert_ as assert_op

__all__ = ["Assert", "assert_", "assert_op"]
