"""Sequence labelling: a BLSTM reads sequences of different lengths in both directions.

The task: a span goes from an opening bracket to the next closing one, and whether a bracket opens
a span is seen only where it ends. Labels are O (outside), B (a span begins), I (inside of one). A
net that reads from left to right alone (`--one-way`) cannot know.
"""

import argparse

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import nn

PAD, OPEN, CLOSE, LETTERS = 0, 1, 2, 6
LABELS, NONE = "OBI", -1
SIGNS = " ()" + "abcdefghij"[:LETTERS]


def labels_of(tokens: np.ndarray) -> np.ndarray:
    """The label of each token: a span is an opening bracket, and all up to the next closing one.

    An opening bracket that another one follows first opens nothing.
    """
    labels, start = np.zeros(len(tokens), "int64"), None
    for i, token in enumerate(tokens):
        if token == OPEN:
            start = i
        elif token == CLOSE and start is not None:
            labels[start], labels[start + 1 : i + 1], start = 1, 2, None
    return labels


def sentences(count: int, longest: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens (count, longest), padded; lengths (count,); labels, padded with -1."""
    rng = np.random.default_rng(seed)
    tokens = np.full((count, longest), PAD, "int64")
    labels = np.full((count, longest), NONE, "int64")
    lengths = rng.integers(longest // 3, longest + 1, count).astype("int32")
    chances = [0.2, 0.12, *[0.68 / LETTERS] * LETTERS]
    for row, truth, n in zip(tokens, labels, lengths, strict=True):
        row[:n] = rng.choice(np.arange(1, 3 + LETTERS), n, p=chances)
        truth[:n] = labels_of(row[:n])
    return tokens, lengths, labels


class Tagger(nn.Module):
    """Scores (N, 3, T) of the labels, of tokens (N, T) and their lengths (N,)."""

    def __init__(self, hidden: int, one_way: bool) -> None:
        make = nn.LSTM if one_way else nn.BLSTM
        self.embed = nn.LookupTable(len(SIGNS), hidden)
        self.recurrent = make(hidden, hidden, 1, batchFirst=True)
        self.scores = nn.Linear(hidden * self.recurrent.directions, len(LABELS))

    def forward(self, tokens, lengths):
        """Both directions of each step meet in one dense layer."""
        h = self.recurrent(self.embed(tokens), lengths)
        return self.scores(h).dimshuffle(0, 2, 1)


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--longest", type=int, default=24, help="tokens of a sequence (24)")
    parser.add_argument("--sentences", type=int, default=2048, help="to learn from (2048)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--one-way", action="store_true", help="an LSTM in place of the BLSTM")
    options = parser.parse_args(argv)

    nn.init.seed(0)
    net = Tagger(options.hidden, options.one_way)
    print(net)
    test = sentences(256, options.longest, 2)
    print(nn.fit(
        net, nn.CrossEntropyCriterion(ignoreIndex=NONE), nn.optim.adam,
        nn.batches(sentences(options.sentences, options.longest, 1), 32, shuffle=True),
        options.epochs, lr=0.01, validation=nn.batches(test, 128),
        metrics={"accuracy": nn.metrics.accuracy(ignore=NONE)},
    ))  # fmt: skip

    tokens, lengths = T.lmatrix("tokens"), T.ivector("lengths")
    label = symdnn.function([tokens, lengths], T.argmax(net.evaluate()(tokens, lengths), axis=1))
    found = label(*test[:2])
    for row, n, truth, guess in zip(*(a[:4] for a in (*test, found)), strict=True):
        print("".join(SIGNS[token] for token in row[:n]))
        print("".join(LABELS[i] for i in truth[:n]), " ", "".join(LABELS[i] for i in guess[:n]))
    there = test[2] != NONE
    accuracy = float((found == test[2])[there].mean())
    outside = float((test[2][there] == 0).mean())
    print(f"labels right: {100 * accuracy:.1f} %, all outside {100 * outside:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()
