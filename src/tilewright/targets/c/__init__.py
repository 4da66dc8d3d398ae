"""The target ``c``: portable C11 sources."""
