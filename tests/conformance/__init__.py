"""Test suites of other projects, run against Tilewright. The outcomes are committed as data, and the tests
compare samples with them.
"""
