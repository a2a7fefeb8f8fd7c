"""The acceptance tests of what users of cuDNN front ends ask for, one file for each need."""
