"""What a loop nest computes: axes, access maps, a scalar program, folds over a monoid."""
