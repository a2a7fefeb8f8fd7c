"""What rewrites make, never users' gradients: fused groups, ops of vendors' libraries."""
