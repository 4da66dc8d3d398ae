"""The engine: continuous batching of many requests over one compiled model and a paged KV cache."""
