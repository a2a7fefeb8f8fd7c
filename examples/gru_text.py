"""A character model: a GRU by RNNBlock on the help texts that Python itself ships."""

import argparse
import pydoc_data.topics

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.tensor.nnet.rnn import RNNBlock


def text_as_numbers(limit: int) -> tuple[np.ndarray, list[str]]:
    text = "\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))[:limit]
    letters = sorted(set(text))
    number = {c: i for i, c in enumerate(letters)}
    return np.array([number[c] for c in text], "int32"), letters


def adam(loss, parameters, rate: float) -> list:
    step = symdnn.shared(np.float32(0))
    now = step + 1
    scale = rate * T.sqrt(1 - T.pow(np.float32(0.999), now)) / (1 - T.pow(np.float32(0.9), now))
    updates = [(step, now)]
    for p, g in zip(parameters, T.grad(loss, parameters), strict=True):
        m, v = (symdnn.shared(np.zeros_like(p.get_value())) for _ in range(2))
        new_m, new_v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        updates += [(m, new_m), (v, new_v), (p, p - scale * new_m / (T.sqrt(new_v) + 1e-7))]
    return updates


def main(argv: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--length", type=int, default=32, help="characters a sequence")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--characters", type=int, default=400_000)
    options = parser.parse_args(argv)

    numbers, letters = text_as_numbers(options.characters)
    n, hidden, batch = len(letters), options.hidden, options.batch
    rng = np.random.default_rng(0)
    block = RNNBlock("float32", hidden, num_layers=1, rnn_mode="gru")
    size = block.get_param_size([batch, n])
    bound = 1 / np.sqrt(hidden)
    params = symdnn.shared(rng.uniform(-bound, bound, size).astype("float32"), name="gru")
    w = symdnn.shared(rng.uniform(-bound, bound, (hidden, n)).astype("float32"), name="w")
    b = symdnn.shared(np.zeros(n, "float32"), name="b")

    seen, following = T.imatrix("seen"), T.imatrix("following")  # (time, batch)
    x = T.extra_ops.to_one_hot(seen.flatten(), n, dtype="float32").reshape((-1, batch, n))
    h0 = T.zeros((1, batch, hidden), dtype="float32")
    y, _ = block.apply(params, x, h0)
    p = T.nnet.softmax(T.dot(y.reshape((-1, hidden)), w) + b)
    loss = T.nnet.categorical_crossentropy(p, following.flatten()).mean()
    train = symdnn.function([seen, following], loss, updates=adam(loss, [params, w, b], 0.005))

    value = 0.0
    for step in range(options.steps):
        starts = rng.integers(0, len(numbers) - options.length - 1, batch)
        windows = numbers[starts + np.arange(options.length + 1)[:, None]]
        value = float(train(windows[:-1], windows[1:]))
        if step % 50 == 0:
            print(f"step {step:4d}  bits a character {value / np.log(2):.3f}")
    print(
        f"{n} letters, {size} recurrent parameters; last {value / np.log(2):.3f} bits a character"
    )
    return value


if __name__ == "__main__":
    main()
