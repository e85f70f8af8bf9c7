"""NVIDIA GPUs: the program of each bucket as a CUDA graph."""
