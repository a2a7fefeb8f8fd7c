"""The CUDA target. Importing it touches no device and needs neither PyCUDA nor a driver."""
