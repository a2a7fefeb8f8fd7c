"""Products of sparse and dense matrices as compiled loops."""
