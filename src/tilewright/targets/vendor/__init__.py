"""Products of matrices by libraries of vendors, as kernels that the compiler places where it is asked to."""
