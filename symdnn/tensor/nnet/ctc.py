"""The CTC loss under Theano's module path ``T.nnet.ctc``."""

from symdnn.ops.nn.ctc import CTCLoss, ctc

__all__ = ["CTCLoss", "ctc"]
