"""Names of Theano that symdnn does not have under the same name, by Theano's modules."""
