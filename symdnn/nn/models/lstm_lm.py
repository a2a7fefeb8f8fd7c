"""A language model: embedding, LSTM layers, scores of the next word (Zaremba et al. 2014)."""

from __future__ import annotations

from typing import Any

from symdnn.errors import InputError
from symdnn.graph.variable import Variable
from symdnn.nn import init
from symdnn.nn.layers.dropout import Dropout
from symdnn.nn.layers.linear import Linear, LookupTable
from symdnn.nn.layers.recurrent import LSTM
from symdnn.nn.modules.module import Module

__all__ = ["LanguageModel", "lstm_lm"]


class LanguageModel(Module):
    """See :func:`lstm_lm`."""

    def __init__(
        self, words: int, embedding: int, hidden: int, layers: int, dropout: float, tied: bool
    ) -> None:
        if tied and embedding != hidden:
            raise InputError(
                f"lstm_lm: tied weights want embedding = hidden, got {embedding} and {hidden}"
            )
        near = init.uniform(0.1)
        self.drop = Dropout(dropout)
        self.encoder = LookupTable(words, embedding, weight_init=near)
        self.rnn = LSTM(embedding, hidden, layers, dropout=dropout)
        self.decoder = Linear(hidden, words, weight_init=near, bias_init=init.zeros)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Variable, hx: Any = None, cx: Any = None) -> Variable:
        """Scores of the next word at every step, (time, batch, words)."""
        return self.states(tokens, hx, cx)[0]

    def states(self, tokens: Any, hx: Any = None, cx: Any = None) -> list[Variable]:
        """``[scores, hy, cy]``: the scores and the states after the last step.

        States are (layers, batch, hidden); the default is zeros. To continue a text in the next
        batch, store them in shared variables that each call updates with its result.
        """
        y, hy, cy = self.rnn.states(self.drop(self.encoder(tokens)), None, hx, cx)
        return [self.decoder(self.drop(y)), hy, cy]


def lstm_lm(
    words: int = 10000,
    embedding: int = 650,
    hidden: int = 650,
    layers: int = 2,
    dropout: float = 0.5,
    tied: bool = False,
) -> LanguageModel:
    """A language model of ``layers`` LSTM layers; 19,780,400 parameters by default.

    It is the medium model of Zaremba et al. (2014), with cuDNN's two biases for each gate. Tokens
    are integers (time, batch) below ``words``; the result is scores (time, batch, words). ``tied``
    uses the embedding's rows as the last layer's weights. Names are those of PyTorch's example of
    a word language model: ``encoder``, ``rnn``, ``decoder``.
    """
    return LanguageModel(words, embedding, hidden, layers, dropout, tied)
