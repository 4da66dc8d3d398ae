"""Random programs: graphs made of random operators, compiled and compared with the interpreter."""
