"""How to draw a call of each public function that is no elementwise function and no reduction.

A drawer gives the arguments: references to values of the program, and literals.
"""

from __future__ import annotations

from typing import Any

from tests.fuzz import drawers_shape as S
from tests.fuzz import drawers_value as V
from tests.fuzz.drawing import Drawer, call


def _one(ndim: Any = None, kinds: str = "biufc") -> Drawer:
    return lambda g: call(g.term(ndim, kinds))


DRAWERS: dict[str, Drawer] = {
    "reshape": S.reshape, "dimshuffle": S.dimshuffle, "moveaxis": S.moveaxis, "squeeze": S.squeeze,
    "rollaxis": lambda g: (lambda t: call(t, g.axis(t), g.integer(0, t.ndim)))(g.term((1, 2, 3))),
    "swapaxes": lambda g: (lambda t: call(t, g.axis(t), g.axis(t)))(g.term((1, 2, 3))),
    "transpose": lambda g: (lambda t: call(t, g.order(t.ndim)))(g.term()),
    "expand_dims": S.expand, "shape_padaxis": S.expand, "addbroadcast": S.statics,
    "unbroadcast": S.statics, "patternbroadcast": S.pattern, "specify_shape": S.specify,
    "shape_padleft": lambda g: call(g.term((0, 1, 2)), g.integer(0, 2)),
    "shape_padright": lambda g: call(g.term((0, 1, 2)), g.integer(0, 2)),
    "atleast_nd": lambda g: call(g.term(), g.integer(0, 3), g.chance(0.5)),
    "atleast_1d": _one(), "atleast_2d": _one(), "atleast_3d": _one(), "copy": _one(),
    "tensor_copy": _one(), "ravel": _one(), "shape": _one(), "size": _one(),
    "flatten": lambda g: (lambda t: call(t, g.integer(1, t.ndim)))(g.term((1, 2, 3, 4))),
    "shape_i": lambda g: (lambda t: call(t, g.axis(t)))(g.term((1, 2, 3))),
    "alloc": S.alloc, "broadcast_to": S.broadcast_to, "fill": S.fill,
    "full_like": lambda g: call(g.term(), g.integer(0, 3)),
    "zeros_like": _one(), "ones_like": _one(), "identity_like": _one(2), "pad": S.pad,
    "zeros": lambda g: call(S.sizes(g)), "ones": lambda g: call(S.sizes(g)),
    "full": lambda g: call(S.sizes(g), g.number()), "make_vector": V.vector,
    "join": S.join, "concatenate": S.concatenate, "stack": S.stack, "stacklists": S.stacklists,
    "hstack": S.rows(1), "vstack": S.rows(0), "horizontal_stack": S.flat_rows(1),
    "vertical_stack": S.flat_rows(0), "split": S.split, "roll": S.roll, "repeat": S.repeat,
    "flip": lambda g: (lambda t: call(t, g.axes(t)))(g.term((1, 2, 3))), "tile": S.tile,
    "meshgrid": S.meshgrid, "diagonal": S.diagonal, "extract_diag": S.diagonal, "tril": S.part,
    "triu": S.part, "diag": lambda g: call(g.term((1, 2)), g.integer(-3, 3)),
    "alloc_diag": lambda g: call(g.term((1, 2)), g.integer(-2, 2)), "trace": _one(2),
    "tri": lambda g: call(g.integer(0, 5), g.integer(0, 5), g.integer(-2, 2)),
    "eye": lambda g: call(g.integer(0, 5), g.integer(0, 5), g.integer(-2, 2)),
    "arange": S.arange, "linspace": S.linspace, "fill_diagonal": S.fill_diagonal,
    "fill_diagonal_offset": S.fill_diagonal, "take": V.take, "take_along_axis": V.take_along,
    "put_along_axis": V.put_along, "compress": V.compress, "choose": V.choose,
    "sort": V.axis_or_none, "argsort": V.axis_or_none, "topk": V.top, "argtopk": V.top_indices,
    "topk_and_argtopk": V.top_indices, "searchsorted": V.searchsorted, "unique": V.unique,
    "to_one_hot": V.labels, "bincount": V.bincount, "inverse_permutation": V.permutation,
    "permute_row_elements": V.permute_rows, "nonzero": _one((1, 2)), "flatnonzero": _one((0, 1, 2)),
    "nonzero_values": _one((1, 2)), "diff": lambda g: (
        lambda t: call(t, g.integer(0, 2), g.axis(t)))(g.term((1, 2, 3))),
    "dot": V.dot, "matmul": V.matmul, "batched_dot": V.batched, "batched_tensordot":
    lambda g: call(*V.batched(g)[0], axes=1), "tensordot": V.tensordot, "einsum": V.einsum,
    "outer": V.vectors, "kron": V.kron, "matrix_dot": lambda g: call(*V.chain(g, 3)),
    "cast": V.cast,
    "complex": V.complex, "complex_from_polar": V.complex, "round": V.rounding,
    "iround": V.rounding,
    "largest": V.several, "add": V.several, "mul": V.several, "smallest": V.several,
    "scaled_dot_product_attention": V.attention,
    "softmax": V.softmax, "logsoftmax": V.softmax,
    "softmax_with_bias": V.with_row, "norm": V.norm, "binary_crossentropy": V.probabilities,
    "sigmoid_binary_crossentropy": V.with_targets, "confusion_matrix": V.two_labels,
    "prepend_scalar_to_each_row": lambda g: call(g.term(0, "f"), g.term(2, "f")),
    "crossentropy_softmax_argmax_1hot_with_bias": V.classes, "h_softmax": V.hierarchy,
    "allclose": lambda g: (lambda t: call(t, g.partner(t, "f")))(g.term(kinds="f")),
}  # fmt: skip
