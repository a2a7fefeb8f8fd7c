"""From neutral ops to oneDNN's ops."""
