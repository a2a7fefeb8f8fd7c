"""Options that are Python values: what is taken, and what functions say of all else."""

import inspect

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control, nn
from symdnn import distributed as dist
from symdnn import distributions as D
from symdnn.errors import InputError, SymdnnError
from symdnn.options import as_function, as_int, as_kind, as_list, as_number, as_numbers, is_int

SPACES = {
    "symdnn": symdnn, "T": T, "T.nnet": T.nnet, "T.linalg": T.linalg, "T.fft": T.fft,
    "nn.functional": nn.functional, "D": D, "dist": dist, "control": control,
}  # fmt: skip
#: They build no graph: they read files, move values, print, or take anything.
OTHERS = {
    "Distribution", "Function", "abort", "barrier", "broadcast_values", "data_parallel", "dprint",
    "finalize", "init", "load", "pp", "save",
}  # fmt: skip
X = T.fmatrix("x")
#: First arguments and options that hardly any function takes.
STRANGE = {
    "a text": ("text",),
    "objects": (np.array([object(), None]),),
    "a dict": ({"a": 1},),
    "a function": (lambda x: x,),
    "a text as an option": (X, "text"),
    "None as an option": (X, None),
    "a fraction as an option": (X, 2.5),
    "a tensor as an option": (X, T.tensor5("y")),
}
#: What Python itself says of arguments that do not fit a signature.
BY_PYTHON = ("positional argument", "required keyword", "takes no arguments", "wanted")


def _functions():
    seen = set()
    for space, module in SPACES.items():
        for name in sorted(getattr(module, "__all__", dir(module))):
            f = getattr(module, name)
            kept = callable(f) and name not in OTHERS and name[0] != "_" and id(f) not in seen
            if not kept or (inspect.isclass(f) and issubclass(f, BaseException | np.generic)):
                continue
            if getattr(f, "__module__", "").startswith("symdnn"):
                seen.add(id(f))
                yield f"{space}.{name}"


NAMES = list(_functions())


@pytest.mark.cpu
@pytest.mark.parametrize("first", range(8))
def test_functions_say_what_they_want(first):
    """Of a strange argument no function raises an error of its inside."""
    raw = []
    for name in NAMES[first::8]:
        space, _, own = name.rpartition(".")
        for what, args in STRANGE.items():
            try:
                getattr(SPACES[space], own)(*args)
            except SymdnnError:
                pass
            except Exception as error:
                if not any(words in str(error) for words in BY_PYTHON):
                    raw.append(f"{name} of {what}: {type(error).__name__}: {error}")
    assert not raw, "\n".join(raw)


@pytest.mark.cpu
def test_values_that_options_take():
    assert as_int("f: n", np.int8(3)) == 3
    assert as_number("f: p", np.float32(0.5)) == 0.5
    assert as_numbers("f: q", [1, 2], "float64").dtype == "float64"
    assert as_list("f: sizes", (1, 2), "sizes") == [1, 2]
    assert as_kind("f", X, symdnn.Variable, "a variable") is X
    assert as_function("f", len) is len


@pytest.mark.cpu
def test_what_is_an_int():
    assert all(map(is_int, (0, -3, 2**70, np.int8(1), np.uint64(2**63))))
    others = (True, np.True_, 1.0, np.float32(1), "1", None, X, [1], np.ones(1, int), np.array(1))
    assert not any(map(is_int, others))


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda: as_int("f: n", 2.0), "f: n=2.0; wanted an int"),
        (lambda: as_number("f: p", "1"), "f: p='1'; wanted a number"),
        (lambda: as_numbers("f: q", "a", "float64"), "f: q='a'; wanted a number"),
        (lambda: as_list("f: sizes", "ab", "sizes"), "wanted a list or tuple of sizes"),
        (lambda: as_kind("f", 3, str, "a word"), "f: wanted a word, got 3"),
        (lambda: as_function("f", 3), "f: wanted a function of arrays, got 3"),
    ],
)
def test_values_that_options_refuse(refused, said):
    with pytest.raises(InputError) as error:
        refused()
    assert said in str(error.value)
