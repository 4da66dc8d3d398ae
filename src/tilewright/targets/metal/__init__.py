"""Apple GPUs: the Metal shading language from block programs.

Artifacts hold the text. The system compiles it when an artifact is loaded: Apple's compiler runs on macOS
only, and nothing else makes code for its GPUs.
"""
