"""What follows a convolution or product is done by its kernel."""
