"""From neutral ops to cuDNN's ops."""
