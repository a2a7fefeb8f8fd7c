"""``T``: the tensor functions, under Theano's and NumPy's names. A face: it defines no op."""

import importlib
import pkgutil

import symdnn.ops
from symdnn.autodiff import Lop, Rop, grad

for _found in pkgutil.iter_modules(__path__):
    try:
        _module = importlib.import_module(f"{__name__}.{_found.name}")
    except ImportError:
        if _found.name in ("constructors", "shaping", "indexing"):
            raise
        continue
    if not _found.ispkg and _found.name not in ("extra_ops", "random"):
        globals().update({_n: getattr(_module, _n) for _n in getattr(_module, "__all__", ())})
