"""Large language models: definitions, weights, quantization, model libraries, the engine that serves them."""
