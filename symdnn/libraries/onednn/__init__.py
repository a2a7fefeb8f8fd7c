"""From neutral ops to oneDNN's."""
