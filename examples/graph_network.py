"""A graph network on synthetic data: each layer multiplies by a sparse adjacency matrix."""

import argparse

import numpy as np
import scipy.sparse

import symdnn
import symdnn.sparse as S
import symdnn.tensor as T


def communities(
    nodes: int, classes: int, features: int, rng: np.random.Generator
) -> tuple[scipy.sparse.csr_array, np.ndarray, np.ndarray]:
    """A stochastic block model: (adjacency, noisy features, the community of each node).

    A node has about 8 edges within its community and 2 to others.
    """
    labels = rng.integers(0, classes, nodes)
    same = labels[:, None] == labels[None, :]
    chance = np.where(same, 8 * classes / nodes, 2 * classes / (nodes * (classes - 1)))
    upper = np.triu(rng.random((nodes, nodes)) < chance, 1)
    edges = scipy.sparse.csr_array((upper | upper.T).astype("float32"))
    centres = rng.standard_normal((classes, features))
    x = centres[labels] * 0.3 + rng.standard_normal((nodes, features))
    return edges, x.astype("float32"), labels.astype("int32")


def normalised(edges: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """``D^-1/2 (A + I) D^-1/2`` (Kipf and Welling, 2017)."""
    whole = edges + scipy.sparse.eye_array(edges.shape[0], dtype="float32", format="csr")
    scale = scipy.sparse.diags_array(1 / np.sqrt(whole.sum(axis=1)))
    return scipy.sparse.csr_array(scale @ whole @ scale).astype("float32")


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--classes", type=int, default=6)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--known", type=float, default=0.1, help="part of the nodes with a label")
    options = parser.parse_args(argv)

    rng = np.random.default_rng(0)
    edges, features, labels = communities(options.nodes, options.classes, options.features, rng)
    known = (rng.random(options.nodes) < options.known).astype("float32")

    # The graph and the features stay; the compiler keeps what follows from them alone.
    graph = S.constant(normalised(edges))
    x, t, mask = (symdnn.shared(v) for v in (features, labels, known))
    sizes = [(options.features, options.hidden), (options.hidden, options.classes)]
    weights = [
        symdnn.shared((rng.standard_normal(s) * np.sqrt(2 / s[0])).astype("float32"), f"w{i}")
        for i, s in enumerate(sizes)
    ]
    hidden = T.nnet.relu(S.dot(graph, T.dot(x, weights[0])))
    p = T.nnet.softmax(S.dot(graph, T.dot(hidden, weights[1])))
    loss = (T.nnet.categorical_crossentropy(p, t) * mask).sum() / mask.sum()
    slopes = T.grad(loss, weights)
    moved = [symdnn.shared(np.zeros_like(w.get_value())) for w in weights]
    speeds = [0.9 * m - 0.2 * g for m, g in zip(moved, slopes, strict=True)]
    updates = [*zip(moved, speeds), *((w, w + s) for w, s in zip(weights, speeds))]
    train = symdnn.function([], loss, updates=updates)
    found = T.eq(T.argmax(p, axis=1), t) * (1 - mask)
    right = symdnn.function([], found.sum() / (1 - mask).sum())

    for step in range(options.steps):
        value = float(train())
        if step % 50 == 0 or step == options.steps - 1:
            print(f"step {step:4d}  loss {value:.3f}  right without a label {float(right()):.3f}")
    return float(right())


if __name__ == "__main__":
    main()
