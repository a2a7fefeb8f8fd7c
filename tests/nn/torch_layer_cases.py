"""Layers of PyTorch's alone: constructor, shapes of the inputs; the weights are stored."""

from typing import Any

#: name -> (class, arguments, options, shapes of the inputs)
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], list[tuple[int, ...]]]] = {}


def _add(kind: str, *args: Any, shapes: Any, **options: Any) -> None:
    CASES[f"{kind} {len(CASES)}"] = (kind, args, options, shapes)


for n, shape in ((1, (2, 3, 5)), (2, (2, 3, 5, 6)), (3, (2, 2, 4, 5, 6))):
    uneven = (1, 2, 0, 3, 2, 1)[: 2 * n]
    for name in ("ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"):
        if (name, n) not in (("ZeroPad", 2), ("ReflectionPad", 2), ("ReplicationPad", 2)):
            _add(f"{name}{n}d", 2, shapes=[shape])
            _add(f"{name}{n}d", uneven, shapes=[shape])
    _add(f"ConstantPad{n}d", uneven, 1.5, shapes=[shape])
    _add(f"ConstantPad{n}d", 1, -2.0, shapes=[shape[1:]])
_add("PixelShuffle", 2, shapes=[(2, 8, 3, 4)])
_add("PixelUnshuffle", 3, shapes=[(2, 2, 6, 9)])
_add("ChannelShuffle", 2, shapes=[(2, 6, 3, 4)])
_add("Unflatten", 1, (2, 3), shapes=[(4, 6, 5)])
_add("Unflatten", -1, (-1, 5), shapes=[(4, 10)])
_add("CELU", shapes=[(3, 4)])
_add("CELU", 0.4, shapes=[(3, 4)])
_add("GLU", shapes=[(3, 6)])
_add("GLU", 1, shapes=[(2, 6, 3)])
_add("Softmax2d", shapes=[(2, 5, 3, 4)])
_add("Softmax2d", shapes=[(5, 3, 4)])
_add("CosineSimilarity", shapes=[(3, 4), (3, 4)])
_add("CosineSimilarity", dim=0, shapes=[(3, 4), (3, 4)])
for p in (1.0, 2.0, 3.0):
    _add("PairwiseDistance", p, shapes=[(3, 4), (3, 4)])
_add("PairwiseDistance", keepdim=True, shapes=[(3, 4), (3, 4)])
_add("RMSNorm", 6, shapes=[(3, 6)])
_add("RMSNorm", (3, 4), eps=0.1, shapes=[(2, 3, 4)])
_add("RMSNorm", 4, elementwise_affine=False, shapes=[(2, 3, 4)])
for cell in ("RNNCell", "GRUCell", "LSTMCell"):
    _add(cell, 4, 5, shapes=[(3, 4)])
    _add(cell, 4, 5, bias=False, shapes=[(4,)])
_add("RNNCell", 4, 5, nonlinearity="relu", shapes=[(3, 4), (3, 5)])
_add("GRUCell", 4, 5, shapes=[(3, 4), (3, 5)])
