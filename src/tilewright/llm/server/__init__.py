"""An OpenAI-compatible HTTP server around the engine.

`app.application` is the ASGI application; `http.make_server` makes the server that runs it.
"""
