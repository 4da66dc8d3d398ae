"""The minimal C runtime linked into every artifact, and loading of artifacts into Python."""
