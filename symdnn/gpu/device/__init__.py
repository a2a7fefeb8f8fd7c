"""One GPU: context, memory, arena, CUDA graphs, clock, error codes, foreign arrays."""
