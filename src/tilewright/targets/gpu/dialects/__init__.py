"""The languages of kernels: a table and a prelude for each."""
