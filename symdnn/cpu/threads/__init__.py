"""The shared OpenMP thread pool, the threads of BLAS, contention with other processes."""
