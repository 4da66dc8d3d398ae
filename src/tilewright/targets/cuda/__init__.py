"""NVIDIA GPUs: CUDA C++ from block programs, compiled by NVRTC."""
