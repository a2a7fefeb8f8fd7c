"""Programs written for Theano, unchanged: its module paths, names, defaults and flags.

Install the paths above the program's own ``import theano``::

    import symdnn.compat.theano as c

    c.install()
    import theano
    import theano.tensor as T

or import them from here, which installs them too::

    import symdnn.compat.theano as theano
    import symdnn.compat.theano.tensor as T

or run a program that is not to be touched::

    python -m symdnn.compat.theano script.py [args]

:mod:`~symdnn.compat.theano.paths` lists which module of Theano is made from which of symdnn's.
Modules are made when they are imported.
"""

from typing import TYPE_CHECKING

from symdnn.compat.theano.install import install
from symdnn.compat.theano.install import name_of_theano as _name_of_theano
from symdnn.compat.theano.pickles import TheanoObject, load_pickle

__all__ = ["TheanoObject", "install", "load_pickle"]

if not TYPE_CHECKING:  # a checker of types would believe that every name exists
    __getattr__ = _name_of_theano
