"""Kernels of this project for NVIDIA GPUs."""
