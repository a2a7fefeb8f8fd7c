"""Programs of several processes, by MPI; and what one process can show of them."""
