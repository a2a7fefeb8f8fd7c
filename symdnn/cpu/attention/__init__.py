"""Attention in tiles: the scores of a block of queries and keys are all that is ever stored."""
