"""Side-by-side benchmarks: `python -m bench` for whole models, `python -m bench.gemm` for single products of
matrices.
"""
