"""Convolution, pooling, normalisation, softmax, losses, dropout, recurrent networks."""
