"""Arguments of wrong types and values: each is an error of ours that names it."""

import functools
import inspect

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import ArgumentError, InputError, SymdnnError, TypeMismatch

#: Values that few arguments take. NaN and an array have no truth value that anybody means.
WRONG = [
    "x", None, -1, 1.5, [], {}, object(), 0, (1, 2, 3, 4, 5, 6, 7), float("nan"), True,
    lambda: 3, np.ones(3), nn.ReLU(), T.fmatrix(),
]  # fmt: skip
#: Layers whose required arguments are not ints, or depend on each other.
BASES = {
    "AdaptiveLogSoftmaxWithLoss": (8, 20, [4]),
    "Clamp": (-1.0, 1.0), "SpatialConvolution": (3, 4, 3, 3), "TemporalConvolution": (3, 4, 3),
    "SpatialDilatedConvolution": (3, 4, 3, 3), "SpatialFullConvolution": (3, 4, 3, 3),
    "TemporalFullConvolution": (3, 4, 3), "VolumetricConvolution": (3, 4, 3, 3, 3),
    "VolumetricFullConvolution": (3, 4, 3, 3, 3), "Reshape": (4,), "View": (4,),
    "Transformer": (4, 2, 1, 1, 4),
    "TransformerDecoder": (nn.TransformerDecoderLayer(4, 2, 4), 2),
    "TransformerEncoder": (nn.TransformerEncoderLayer(4, 2, 4), 2),
    **{f"Spatial{k}Pooling": (2, 2) for k in ("Max", "Average")},
    **{f"Temporal{k}Pooling": (2,) for k in ("Max", "Average")},
    **{f"Volumetric{k}Pooling": (2, 2, 2) for k in ("Max", "Average")},
}  # fmt: skip
ABSTRACT = {"Module", "Criterion", "Container", "Recurrent"}


def is_layer(name):
    made = getattr(nn, name)
    if inspect.isclass(made):
        return issubclass(made, nn.Module) and name not in ABSTRACT
    return made.__module__ == "symdnn.nn.layers.torch_names" if callable(made) else False


LAYERS = sorted(name for name in nn.__all__ if is_layer(name))


def required(signature):
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    empty = inspect.Parameter.empty
    return [p.name for p in signature.parameters.values() if p.kind in kinds and p.default is empty]


def calls_of(name):
    """The layer's maker, and arguments of which one is wrong."""
    made = getattr(nn, name)
    signature = inspect.signature(made)
    base = BASES.get(name) or tuple(4 for _ in required(signature))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [p.name for p in signature.parameters.values() if p.kind is kind]
    for p in signature.parameters.values():
        for wrong in WRONG:
            if p.kind is p.VAR_POSITIONAL:
                yield p.name, wrong, functools.partial(made, *base, wrong)
            elif p.kind is not p.VAR_KEYWORD and p.name in names[: len(base)]:
                given = list(base)
                given[names.index(p.name)] = wrong
                yield p.name, wrong, functools.partial(made, *given)
            elif p.kind is not p.VAR_KEYWORD:
                yield p.name, wrong, functools.partial(made, *base, **{p.name: wrong})


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_raises_a_raw_error(name):
    refused = 0
    for argument, wrong, call in calls_of(name):
        try:
            call()
        except SymdnnError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}({argument}={wrong!r}): {error!r}") from error
    parameters = inspect.signature(getattr(nn, name)).parameters.values()
    assert refused or all(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.BatchNorm1d(3, eps="x"), r"BatchNorm1d: eps='x'; wanted a number"),
        (lambda: nn.Linear(3, 4, "yes"), r"Linear: bias='yes'; wanted True or False"),
        (lambda: nn.Linear(3, 4, dtype="int32"), r"Linear: dtype='int32'; wanted .* float dtype"),
        (
            lambda: nn.Linear(3, 4, weight_init=lambda: 3),
            r"weight_init=.*wanted a function \(shape",
        ),
        (lambda: nn.Dropout(None), r"Dropout: p=None; wanted a number"),
        (lambda: nn.MSELoss(reduction=3), r"MSELoss: reduction=3; wanted a string"),
        (lambda: nn.Sequential(nn.ReLU), r"Sequential.*wanted a module"),
    ],
)
def test_messages_name_argument_wanted_and_got(call, message):
    with pytest.raises(SymdnnError, match=message):
        call()


# -- optimisers and schedules --------------------------------------------------------------------

OPTIMISERS = [
    nn.optim.sgd, nn.optim.momentum, nn.optim.nesterov, nn.optim.adagrad, nn.optim.rmsprop,
    nn.optim.adadelta, nn.optim.adam, nn.optim.adamw, nn.optim.adamax, nn.optim.nadam,
    nn.optim.lamb,
]  # fmt: skip
COMMON = [
    "grads", "lr_scale", "decays", "clip_norm", "clip_value", "loss_scale", "accumulate", "name",
    "disconnected_inputs",
]  # fmt: skip


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=lambda o: o.__name__)
def test_no_optimiser_raises_a_raw_error(optimiser):
    net, x = nn.Linear(3, 3), T.fmatrix("x")
    loss = T.sqr(net(x)).mean()
    names = [n for n in inspect.signature(optimiser).parameters if n != "common"]
    for name in [*names, *COMMON, "nonsense"]:
        for wrong in [*WRONG, nn.schedule.constant(0.1), "adam", ("a", "b"), [0.5]]:
            given = {"loss": loss, "params": net, name: wrong}
            try:
                optimiser(**given)
            except SymdnnError:
                continue
            except Exception as error:
                # Numbers out of range are ValueErrors, which name their option.
                named = name in str(error) or "limit" in str(error)
                if not (isinstance(error, ValueError) and named):
                    raise AssertionError(f"{name}={wrong!r}: {error!r}") from error
    for group in ({"lr": "x"}, {"nothing": 3}, {"lr_scale": "x"}, {3: 4}, {"weight_decay": None}):
        with pytest.raises(SymdnnError):
            optimiser(loss, [([net.weight], group), [net.bias]])


def test_parameters_in_any_form():
    net, x = nn.Linear(3, 3), T.fmatrix("x")
    loss = T.sqr(net(x)).mean()
    for params in (net, net.parameters(), tuple(net.parameters()), iter(net.parameters()),
                   net.named_parameters(), net.named_parameters().values()):  # fmt: skip
        assert {v for v, _ in nn.optim.sgd(loss, params)} == set(net.parameters())


SCHEDULES = {
    "constant": (0.1,), "step": (0.1, 3), "multi_step": (0.1, [3]), "exponential": (0.1, 0.5),
    "linear": (0.1, 5), "cosine": (0.1, 5), "cosine_restarts": (0.1, 5), "warm_up": (0.1, 5),
    "one_cycle": (0.1, 5), "scaled": (0.1, 2.0), "Plateau": (0.1,), "chain": (0.1,),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_raises_a_raw_error(name):
    made, base = getattr(nn.schedule, name), SCHEDULES[name]
    for i in range(len(base)):
        for wrong in WRONG:
            given = [*base[:i], wrong, *base[i + 1 :]]
            try:
                schedule = made(*given)
            except SymdnnError:
                continue
            except Exception as error:
                if not (isinstance(error, ValueError) and "; wanted" in str(error)):
                    raise AssertionError(f"{given}: {error!r}") from error
                continue
            assert callable(schedule)


@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose1d", "MaxPool3d", "BatchNorm1d"])
def test_layers_under_pytorchs_names_name_themselves(name):
    with pytest.raises(ArgumentError, match=f"^{name}: missing a required argument"):
        getattr(nn, name)()


WRONG_CALLS = {
    "PyTorch's": (
        lambda net: nn.optim.adam(net.parameters(), lr=0.1),
        "adam: .*'params'; it takes loss",
    ),
    "misspelled": (lambda net: nn.fit(net, abs, "sgd", [], epoch=2), "'epoch' .* mean 'epochs'"),
    "Keras'": (lambda net: nn.fit(net, abs, "sgd", [], 2, verbose=1), "'verbose'; it takes net"),
    "Torch7's": (lambda net: nn.Linear(3), "Linear: .*'outputSize'; it takes inputSize"),
    "a layer": (lambda net: nn.Conv2d(3, 8, kernel=3), "'kernel' .* mean 'kernel_size'"),
    "a schedule": (lambda net: nn.schedule.cosine(0.1), "cosine: .*'steps'; it takes rate, steps"),
}


@pytest.mark.parametrize(("call", "message"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_missing_and_unknown_arguments_say_what_there_is(call, message):
    with pytest.raises(ArgumentError, match=message):
        call(nn.Linear(2, 1))


def test_what_gives_no_updates_is_named():
    net, data = nn.Linear(2, 1), [(np.ones((3, 2), "float32"), np.ones((3, 1), "float32"))]
    with pytest.raises(InputError, match="optimiser=LBFGS, a class; wanted a function"):
        nn.fit(net, nn.MSELoss(), nn.optim.LBFGS, data, epochs=1, lr=0.1)
    with pytest.raises(TypeMismatch, match=r"updates: wanted a dict .* Call it, adam\(\.\.\.\)"):
        symdnn.function([], [], updates=nn.optim.adam)
    for wrong in (3, "w", net):
        with pytest.raises(TypeMismatch, match="updates: wanted a dict or a list of"):
            symdnn.function([], [], updates=wrong)


@pytest.mark.parametrize("name", ["AdaptiveAvgPool", "AdaptiveMaxPool"])
def test_adaptive_sizes_are_ints_or_tuples(name):
    for n in (1, 2, 3):
        make = getattr(nn, f"{name}{n}d")
        assert repr(make(3)) == repr(make((3,) * n))
        with pytest.raises(InputError, match="output size: wanted an int"):
            make((3,) * (n + 1))
