"""Products and convolutions of quantised numbers."""
