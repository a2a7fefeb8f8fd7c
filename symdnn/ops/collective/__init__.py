"""What several processes compute together: reductions, gathers and moves over a group of ranks."""
