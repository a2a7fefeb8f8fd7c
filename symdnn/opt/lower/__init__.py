"""From neutral ops to those of a vendor's library."""
