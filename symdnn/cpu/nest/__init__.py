"""Loop nests as compiled loops: schedules, LLVM IR, kernels."""
