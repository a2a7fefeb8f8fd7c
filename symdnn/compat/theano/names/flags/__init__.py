"""Names of ``theano.configparser`` and ``theano.configdefaults``."""
