"""Apple GPUs: the Metal shading language from block programs."""
