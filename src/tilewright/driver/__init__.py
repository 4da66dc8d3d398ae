"""The compilation driver: options, front-end selection, stages, cache, metadata, report."""
