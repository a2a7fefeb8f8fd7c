"""C libraries under their own names: libcuda, NVRTC, cuBLASLt, cuDNN's two APIs."""
