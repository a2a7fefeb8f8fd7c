"""The intermediate representation: types, variables, ops, function graphs, targets."""
