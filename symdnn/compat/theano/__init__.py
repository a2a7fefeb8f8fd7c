"""Programs written for Theano, unchanged: its module paths, names, defaults and flags.

Install the paths above the program's own ``import theano``::

    import symdnn.compat.theano as c

    c.install()
    import theano
    import theano.tensor as T

or run a program that is not to be touched::

    python -m symdnn.compat.theano script.py [args]

:mod:`~symdnn.compat.theano.paths` lists which module of Theano is made from which of symdnn's.
Modules are made when they are imported.
"""

from symdnn.compat.theano.install import install
from symdnn.compat.theano.pickles import TheanoObject, load_pickle

__all__ = ["TheanoObject", "install", "load_pickle"]
