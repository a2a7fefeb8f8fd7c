"""The pictures of the demonstration: curves, first-layer filters, confusion matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from symdnn.demo.data import Digits
from symdnn.demo.training import Result

__all__ = ["draw"]


#: The label of the training curves, with the reasons why they are above those of the test images.
_TRAINING_LABEL = "training (dropout, moved images)"


def draw(result: Result, digits: Digits, folder: Path) -> list[Path]:
    """Write the three PNG files into ``folder``; their paths."""
    import matplotlib

    matplotlib.use("Agg")
    return [
        _curves(result, folder / "curves.png"),
        _filters(result, folder / "filters.png"),
        _confusion(result, digits, folder / "confusion.png"),
    ]


def _figure(width: float, height: float, **options: Any) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained", **options)


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _curves(result: Result, path: Path) -> Path:
    figure, (left, right) = _figure(9, 3.5, ncols=2)
    epochs = np.arange(1, len(result.train_loss) + 1)
    left.semilogy(epochs, result.train_loss, label=_TRAINING_LABEL)
    left.semilogy(epochs, result.test_loss, label="test")
    left.set(xlabel="epoch", ylabel="cross-entropy", title="Loss")
    right.plot(epochs, 100 * (1 - np.array(result.train_accuracy)), label=_TRAINING_LABEL)
    right.plot(epochs, 100 * (1 - np.array(result.test_accuracy)), label="test")
    right.set(xlabel="epoch", ylabel="errors, %", title="Wrong answers", ylim=(0, 10))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    return _save(figure, path)


def _filters(result: Result, path: Path) -> Path:
    filters = result.network.parameters["conv1.w"].get_value()[:, 0]
    figure, axes = _figure(8, 3, nrows=3, ncols=8)
    limit = float(np.abs(filters).max())
    for ax, image in zip(axes.flat, filters):
        ax.imshow(image, cmap="RdBu", vmin=-limit, vmax=limit)
        ax.axis("off")
    figure.suptitle("The 24 filters of the first convolution")
    return _save(figure, path)


def _confusion(result: Result, digits: Digits, path: Path) -> Path:
    predicted = result.network.predict(digits.test_x).argmax(axis=1)
    table = np.zeros((10, 10), int)
    np.add.at(table, (digits.test_y, predicted), 1)
    figure, ax = _figure(5, 4.6)
    ax.imshow(np.log1p(table), cmap="Blues")
    for row, column in np.ndindex(10, 10):
        if count := table[row, column]:
            colour = "white" if row == column else "black"
            ax.text(column, row, count, ha="center", va="center", color=colour)
    ax.set(xlabel="predicted", ylabel="true", title="Test images")
    ax.set(xticks=range(10), yticks=range(10))
    return _save(figure, path)
