"""`python -m bench.gpu`: what a GPU computes and how fast, and what its kernels need."""
