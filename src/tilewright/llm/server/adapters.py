"""/v1/load_lora_adapter and /v1/unload_lora_adapter, with the fields of vLLM's server."""

from __future__ import annotations

import asyncio

from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from ...errors import RequestError, WeightsError
from .errors import ApiError
from .protocol import Model
from .service import Service


class LoadRequest(Model):
    lora_name: str = Field(min_length=1, max_length=256)
    lora_path: str = Field(min_length=1)
    """A folder on the server's machine."""
    load_inplace: bool = False
    """Whether an adapter of this name is replaced."""
    model: str | None = None
    """The model that it changes, if the server has several."""


class UnloadRequest(Model):
    lora_name: str = Field(min_length=1)
    lora_int_id: int | None = None  # vLLM's own number of the adapter
    model: str | None = None


async def load_adapter(service: Service, request: LoadRequest) -> Response:
    """Load an adapter; requests that run are not affected.

    Raises:
        ApiError: 400: it cannot be loaded, its name is taken, or there is no place for it.
    """
    try:
        await asyncio.to_thread(
            service.load_adapter, request.lora_name, request.lora_path, request.load_inplace
        )
    except WeightsError as error:
        raise ApiError(400, str(error), param="lora_path", code="invalid_adapter") from None
    except RequestError as error:
        # No field is at fault where places for adapters are missing.
        param = "lora_name" if request.lora_name in service.models else None
        raise ApiError(400, str(error), param=param, code="invalid_adapter") from None
    return PlainTextResponse(f"Success: LoRA adapter '{request.lora_name}' added successfully.")


async def unload_adapter(service: Service, request: UnloadRequest) -> Response:
    """Refuse further requests to an adapter; those that run keep it.

    Raises:
        ApiError: 404: there is none of this name.
    """
    try:
        service.engine.adapters.unload(request.lora_name)
    except RequestError as error:
        raise ApiError(404, str(error), param="lora_name", code="model_not_found") from None
    return PlainTextResponse(f"Success: LoRA adapter '{request.lora_name}' removed successfully.")
