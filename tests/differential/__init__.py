"""Random programs: graphs of random operators are compiled and compared with the interpreter."""
