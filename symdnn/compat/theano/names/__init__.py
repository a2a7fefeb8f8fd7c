"""Names of Theano that symdnn does not have under the same name, one module for each of Theano's."""
