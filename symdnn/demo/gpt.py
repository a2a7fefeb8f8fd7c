"""``symdnn demo gpt``: train a small GPT on Python's own manual, and let it write."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.graph.typing import Array

__all__ = ["main"]

#: Characters of a text in training, and texts of a step.
CONTEXT, BATCH = 96, 16
#: Width, layers and heads of the network, and the factor of Adam's steps.
WIDTH, LAYERS, HEADS, RATE = 128, 4, 4, 2e-3
#: The share of the manual that is not trained on.
TEST_SHARE = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """Train, write a text and the picture; the exit status is 0 unless the loss did not fall."""
    parser = argparse.ArgumentParser(prog="symdnn demo gpt", description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="steps of training (600)")
    parser.add_argument("--length", type=int, default=80, help="characters of the sample (80)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, texts and the sample (1)")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder of results")
    options = parser.parse_args(argv)
    for name in ("steps", "length"):
        if (given := getattr(options, name)) < 1:
            parser.error(f"argument --{name}: wanted an integer of at least 1, got {given}")
    text = _manual()
    letters = sorted(set(text))
    tokens = np.array([letters.index(c) for c in text])
    print(f"{len(text)} characters of Python's manual, {len(letters)} different ones")
    net = _network(len(letters), options.seed)
    losses = _train(net, tokens, options)
    sample = _sample(net, letters, options)
    print(f"a sample:\n{sample}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "sample.txt").write_text(sample, encoding="utf-8")
    _picture(net, letters, options.out / "attention.png")
    return 0 if losses[-1] < losses[0] else 1


def _manual() -> str:
    """The reference manual that Python carries for ``help()``, in printable ASCII."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    return "".join(c for c in text if c == "\n" or " " <= c <= "~")


def _network(words: int, seed: int) -> Any:
    from symdnn import nn

    nn.init.seed(seed)
    return nn.models.gpt2(words, CONTEXT, WIDTH, LAYERS, HEADS, dropout=0.0)


def _train(net: Any, tokens: Array, options: Any) -> list[float]:
    """Losses before, along and after the steps, of text that was not trained on."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    import symdnn
    import symdnn.tensor as T
    from symdnn import nn

    cut = int(len(tokens) * (1 - TEST_SHARE))
    rng = np.random.default_rng(options.seed)
    x = T.tensor("int64", (BATCH, CONTEXT + 1), name="texts")
    scores = net(x[:, :-1])
    loss = nn.CrossEntropyCriterion()(scores.reshape((-1, scores.shape[2])), x[:, 1:].flatten())
    start = time.perf_counter()
    step = symdnn.function([x], loss, updates=nn.optim.adam(loss, net, lr=RATE, clip_norm=1.0))
    evaluate = symdnn.function([x], loss)
    test = _texts(tokens[cut:], rng)
    losses = [float(evaluate(test))]
    print(f"compiled in {time.perf_counter() - start:.1f} s, test loss {losses[0]:.3f}")
    start = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("loss", total=options.steps)
        for number in range(options.steps):
            value = step(_texts(tokens[:cut], rng))
            if number % 20 == 0:
                progress.update(task, description=f"loss {float(value):.3f}")
            progress.advance(task)
    losses.append(float(evaluate(test)))
    seconds = time.perf_counter() - start
    rate = options.steps * BATCH * CONTEXT / seconds
    print(
        f"{options.steps} steps in {seconds:.1f} s, {rate:.0f} characters/s, test loss "
        f"{losses[-1]:.3f} ({losses[-1] / np.log(2):.2f} bits a character)"
    )
    return losses


def _texts(tokens: Array, rng: np.random.Generator) -> Array:
    begins = rng.integers(0, len(tokens) - CONTEXT - 1, BATCH)
    return np.stack([tokens[b : b + CONTEXT + 1] for b in begins])


def _sample(net: Any, letters: Sequence[str], options: Any) -> str:
    from symdnn.nn.models import Generator

    prompt = "The statement"
    length = min(options.length, CONTEXT - len(prompt))
    generate = Generator(net, 1, CONTEXT, temperature=0.7, top_p=0.95, seed=options.seed)
    tokens = generate(np.array([[letters.index(c) for c in prompt]]), length)
    return "".join(letters[t] for t in tokens[0])


def _picture(net: Any, letters: Sequence[str], path: Path) -> None:
    """The attention of the last layer's heads in a sentence; skipped without matplotlib."""
    import symdnn
    import symdnn.tensor as T

    try:
        import matplotlib
    except ImportError:
        print("no picture of the attention: pip install 'symdnn[viz]'")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sentence = "for statements, see the section on loops"
    x = T.tensor("int64", (1, None), name="text")
    maps = symdnn.function([x], net.evaluate().attention_maps(x)[-1])
    found = maps(np.array([[letters.index(c) for c in sentence]]))[0]
    figure, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 4.4), layout="constrained")
    for head, (axis, weights) in enumerate(zip(axes, found, strict=True)):
        axis.imshow(np.sqrt(weights), cmap="magma")
        axis.set(title=f"head {head}", xlabel="seen", ylabel="from" if head == 0 else "")
        axis.set_xticks(range(len(sentence)), list(sentence), fontsize=6)
        axis.set_yticks(range(len(sentence)), list(sentence), fontsize=6)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"wrote {path}")
