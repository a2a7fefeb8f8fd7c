"""The functions of PyTorch's ``torch.nn.functional``, with its names and arguments.

``from symdnn.nn import functional as F``. The layer of the same name describes a function.
"""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.nn.functional import images, layers, losses, products
from symdnn.nn.functional.images import *  # noqa: F403
from symdnn.nn.functional.layers import *  # noqa: F403
from symdnn.nn.functional.losses import *  # noqa: F403
from symdnn.nn.functional.products import *  # noqa: F403

__all__ = [*images.__all__, *layers.__all__, *losses.__all__, *products.__all__]

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "FUNCTIONAL")
