"""Matrix products and einsum."""
