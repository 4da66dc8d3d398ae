"""Suites that others wrote, run against Tilewright; outcomes are committed as data and compared by the
tests.
"""
