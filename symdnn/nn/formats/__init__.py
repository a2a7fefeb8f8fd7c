"""Weights in files of PyTorch, Keras and Theano: see :mod:`symdnn.nn.weights`."""
