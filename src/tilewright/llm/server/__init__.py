"""An OpenAI-compatible HTTP server around the engine: `app.application` is the ASGI application, `serve.serve` runs it."""
