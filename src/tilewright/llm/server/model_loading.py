"""/v1/load_model and /v1/unload_model: models of the server, loaded and unloaded while it runs."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from starlette.responses import Response

from .errors import json_response
from .models import Models
from .protocol import Model


class LoadModelRequest(Model):
    model: str = Field(min_length=1, max_length=256)
    path: str | None = Field(default=None, min_length=1)
    """A library on the server's machine, of a model that the server does not know yet."""


class UnloadModelRequest(Model):
    model: str = Field(min_length=1)


async def load_model(models: Models, request: LoadModelRequest) -> Response:
    """Load a model, and add it to the server's if there is a path.

    Raises:
        ApiError: As for `Models.load`.
    """
    await models.load(request.model, None if request.path is None else Path(request.path))
    return json_response({"id": request.model, "object": "model", "loaded": True})


async def unload_model(models: Models, request: UnloadModelRequest) -> Response:
    """Unload a model that is idle.

    Raises:
        ApiError: As for `Models.unload`.
    """
    await models.unload(request.model)
    return json_response({"id": request.model, "object": "model", "loaded": False})


__all__ = ["LoadModelRequest", "UnloadModelRequest", "load_model", "unload_model"]
