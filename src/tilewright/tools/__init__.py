"""Tools around the compiler: verification, roofline measurement, model support checks, test-case
minimization."""
