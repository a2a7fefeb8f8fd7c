"""The preview of training: gradients of values in the graph, and steps of optimisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.elementwise import number


def _gradient(node: Node) -> list[Variable]:
    """The gradient of the value named ``y`` with respect to those named ``xs``."""
    if node.attribute("zs") and len(node.inputs) < len(node.required("xs")) + len(
        node.required("zs")
    ):
        raise node.error("an input for each of xs and zs is wanted")
    y = node.scope.find(node.required("y")).variable
    wrt = [node.scope.find(n).variable for n in node.required("xs")]
    cost = y if y.ndim == 0 else T.sum(y)
    return list(T.grad(cost, wrt, disconnected_inputs="ignore"))


def _each(node: Node, groups: int, step: Callable[..., list[Variable]]) -> list[Variable]:
    """A step for each tensor: inputs and outputs are grouped by what they are."""
    rest = node.variables()[2:]
    count = len(rest) // groups
    results = [step(*(rest[g * count + i] for g in range(groups))) for i in range(count)]
    return [r[k] for k in range(len(results[0])) for r in results]


def _adagrad(node: Node) -> list[Variable]:
    rate, steps = node.x(), node.x(1)
    decay, epsilon = node.attribute("decay_factor", 0.0), node.attribute("epsilon", 1e-6)
    norm = node.attribute("norm_coefficient", 0.0)

    def step(x: Variable, g: Variable, h: Variable) -> list[Variable]:
        now = rate.astype(x.type.dtype) / (
            number(x, 1) + steps.astype(x.type.dtype) * number(x, decay)
        )
        g = g + number(x, norm) * x
        new = h + g * g
        return [x - now * g / (T.sqrt(new) + number(x, epsilon)), new]

    return _each(node, 3, step)


def _adam(node: Node) -> list[Variable]:
    rate, steps = node.x(), node.x(1)
    alpha, beta = node.attribute("alpha", 0.9), node.attribute("beta", 0.999)
    epsilon = node.attribute("epsilon", 0.0)
    norm, after = (
        node.attribute("norm_coefficient", 0.0),
        node.attribute("norm_coefficient_post", 0.0),
    )

    def step(x: Variable, g: Variable, v: Variable, h: Variable) -> list[Variable]:
        g = g + number(x, norm) * x
        new_v = number(x, alpha) * v + number(x, 1 - alpha) * g
        new_h = number(x, beta) * h + number(x, 1 - beta) * g * g
        t = steps.astype(x.type.dtype)
        corrected = T.sqrt(number(x, 1) - T.pow(number(x, beta), t)) / (
            number(x, 1) - T.pow(number(x, alpha), t)
        )
        now = rate.astype(x.type.dtype)
        now = T.switch(steps > 0, now * corrected, now)
        new_x = x - now * new_v / (T.sqrt(new_h) + number(x, epsilon))
        return [new_x * number(x, 1 - after), new_v, new_h]

    return _each(node, 4, step)


def _momentum(node: Node) -> list[Variable]:
    rate, steps = node.x(), node.x(1)
    alpha, beta = node.required("alpha"), node.required("beta")
    norm, mode = node.required("norm_coefficient"), node.required("mode")

    def step(x: Variable, g: Variable, v: Variable) -> list[Variable]:
        g = g + number(x, norm) * x
        factor = T.switch(steps > 0, number(x, beta), number(x, 1))
        new = number(x, alpha) * v + factor * g
        now = rate.astype(x.type.dtype)
        if mode == "standard":
            return [x - now * new, new]
        return [x - now * (g + number(x, alpha) * new), new]

    return _each(node, 3, step)


OPS: dict[str, Any] = {
    "Gradient": _gradient, "Adagrad": _adagrad, "Adam": _adam, "Momentum": _momentum,
}  # fmt: skip
