"""Passes within a level. A pass is a plain function on a module, and its file carries its name."""
