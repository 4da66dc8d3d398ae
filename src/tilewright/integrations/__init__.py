"""Integrations of the compiler into other frameworks."""
