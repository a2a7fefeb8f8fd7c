"""Optimisers: functions of a loss and its parameters that return updates.

::

    train = symdnn.function([x, t], loss, updates=nn.optim.adam(loss, net, 0.001))

``loss`` is a scalar; ``params`` a module, a list of shared variables, or groups with settings of
their own: ``[(net[0], {"lr": 0.01}), (rest, {"weight_decay": 0.0})]``. ``lr``, the learning rate,
is a number, or a float scalar that may be shared or an input of the function. The result is a list
of pairs, with the updates of batch normalisation's statistics. Its ``state`` has the optimiser's
own variables by name, as ``symdnn.io.save_parameters`` and ``load_parameters(into=)`` take them.
Every optimiser takes besides its own options:

``grads``
    gradients in the order of the parameters; then ``loss`` may be None. With a loss given too, the
    statistics that it computed are updated. None stands for no gradient.
``lr_scale``
    factors of the learning rate: a dict from parameters or their names to numbers, or a function
    ``(name, parameter) -> number``.
``decays``
    a function ``(name, parameter) -> bool``: whether ``weight_decay`` applies;
    :func:`matrices_only` leaves biases and the scales of normalisation out. All, unless given.
``clip_norm``, ``clip_value``
    limits of the gradients' common norm and of each element; both: elements first.
``loss_scale``
    a :class:`symdnn.LossScale`: gradients are computed of the scaled loss, and a step with an
    infinite one is left out.
``accumulate``
    how many calls make a step, by the mean of their gradients; in the others no parameter changes.
``maximize``
    True: a step up, along the gradient. ``weight_decay`` still draws to 0.
``disconnected_inputs``
    what a parameter does that the loss does not depend on: ``"warn"`` (one
    :class:`~symdnn.errors.UnusedParameter` that names all of them), ``"ignore"`` or ``"raise"``. It
    gets no update and has no state, as in PyTorch.
``distributed``
    True, or a :class:`symdnn.distributed.DataParallel`: gradients, and statistics of batches, are
    averaged over the ranks, which get the parameters of the first one.
``name``
    what the names of the state begin with, for two optimisers in one training.
"""

from typing import TYPE_CHECKING as _CHECKED

from symdnn.graph.names.elsewhere import refusing as _refusing
from symdnn.nn.optimizers.adam import *
from symdnn.nn.optimizers.average import Average, ema
from symdnn.nn.optimizers.base import Updates
from symdnn.nn.optimizers.groups import matrices_only
from symdnn.nn.optimizers.lbfgs import LBFGS
from symdnn.nn.optimizers.matrices import adafactor, muon
from symdnn.nn.optimizers.sgd import *

__all__ = [
    "LBFGS", "Average", "Updates", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw",
    "asgd", "ema", "lamb", "matrices_only", "momentum", "muon", "nadam", "nesterov", "radam",
    "rmsprop", "rprop", "sgd",
]  # fmt: skip

if not _CHECKED:  # a checker of types would believe that every name exists
    __getattr__ = _refusing(__name__, "OPTIM")
