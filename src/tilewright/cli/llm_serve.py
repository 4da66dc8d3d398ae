"""`tilewright llm serve LIBRARY...`: an OpenAI-compatible server."""

from __future__ import annotations

import re
import socket
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import click

from .common import import_option
from .llm_model import (
    chat_template_option,
    check_processes,
    chosen,
    engine_options,
    open_engine,
    sampling_options,
    set_chat_template,
)

_SECONDS = click.FloatRange(min=0, min_open=True)
_COUNT = click.IntRange(min=1)


class MemorySize(click.ParamType):
    """A number of bytes, with a unit such as GB or GiB."""

    name = "SIZE"
    _UNITS: ClassVar = {"": 1} | {
        f"{letter}{end}": base**power
        for power, letter in enumerate("KMGT", 1)
        for end, base in (("", 1024), ("B", 1000), ("iB", 1024))
    }

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
        units = {name.upper(): size for name, size in self._UNITS.items()}
        if found is None or found[2].upper() not in units or float(found[1]) == 0:
            self.fail(f"{value!r} is no size: write it as 8GB, 500MB or 8GiB", param, ctx)
        return int(float(found[1]) * units[found[2].upper()])


@click.command("serve")
@click.argument(
    "libraries", metavar="LIBRARY...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@import_option
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all interfaces."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 for any free one.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="Name of the model for clients (default: the file's name). Repeated for several models, in their "
    "order.",
)
@click.option(
    "--memory-limit",
    type=MemorySize(),
    metavar="SIZE",
    help="Memory of the loaded models together, such as 8GB: others are loaded when requests name them, and "
    "the one that was not used for the longest time is unloaded (default: all are loaded).",
)
@click.option(
    "--prefix-cache-folder",
    "page_folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder that keeps the KV cache of prompts and replies when memory is needed, and over restarts.",
)
@click.option(
    "--prefix-cache-size",
    "page_folder_bytes",
    type=MemorySize(),
    metavar="SIZE",
    help="Largest size of the files in the folder of --prefix-cache-folder.  [default: 10GB]",
)
@click.option(
    "--allow-model-loading",
    "load_models",
    is_flag=True,
    help="Let clients load models from files of this machine, and unload them.",
)
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File of accepted API keys, one a line. TILEWRIGHT_API_KEYS adds more.",
)
@click.option(
    "--cors-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Origin whose web pages may use the server; '*' for all. May be repeated.",
)
@click.option(
    "--allowed-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Host name to accept beside this machine's own; needed only without API keys. May be repeated.",
)
@click.option(
    "--max-body", type=_COUNT, metavar="BYTES", help="Largest size of a request.  [default: 8388608]"
)
@click.option(
    "--max-prompt-tokens",
    type=_COUNT,
    help="Length limit of a prompt in tokens (default: the model's context).",
)
@click.option(
    "--max-tokens", type=_COUNT, help="Length limit of an answer in tokens (default: the model's context)."
)
@click.option(
    "--queue",
    type=click.IntRange(min=0),
    help="Largest number of waiting answers; more get status 429.  [default: 256]",
)
@click.option(
    "--max-connections",
    type=_COUNT,
    help="Largest number of connections; more get status 503.  [default: 1024]",
)
@click.option(
    "--header-timeout", type=_SECONDS, help="Time limit in seconds for a request's headers.  [default: 10]"
)
@click.option(
    "--body-timeout", type=_SECONDS, help="Time limit in seconds for a request's body.  [default: 30]"
)
@click.option(
    "--send-timeout",
    type=_SECONDS,
    help="Time limit in seconds for a client that reads nothing.  [default: 60]",
)
@click.option(
    "--request-timeout", type=_SECONDS, help="Time limit in seconds for a whole answer.  [default: 600]"
)
@click.option(
    "--heartbeat", type=_SECONDS, help="Seconds between keep-alive comments in a stream.  [default: 15]"
)
@click.option(
    "--responses",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that stores the last responses, for previous_response_id (default: memory).",
)
@click.option(
    "--tool-form",
    metavar="NAME",
    help="Form of the model's tool calls, such as hermes or mistral (default: that of its chat template).",
)
@click.option(
    "--traces",
    metavar="URL",
    help="Collector of OpenTelemetry traces (OTLP over HTTP), such as http://127.0.0.1:4318/v1/traces; needs "
    "the extra 'otel'.",
)
@click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME=FOLDER",
    help="Low-rank adapter (LoRA) that PEFT saved, which requests choose as model NAME. May be repeated.",
)
@click.option(
    "--allow-adapter-loading",
    "load_adapters",
    is_flag=True,
    help="Let clients load adapters from folders of this machine, and unload them.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    help="Time limit in seconds to finish answers after SIGTERM.  [default: 60]",
)
@click.option(
    "--tensor-parallel",
    type=_COUNT,
    metavar="N",
    help="Number of processes among which the library's matrices are divided (default: what it was compiled "
    "for).",
)
@click.option(
    "--pipeline-parallel",
    type=_COUNT,
    metavar="N",
    help="Number of stages of processes among which its layers are divided (default: what it was compiled "
    "for).",
)
@engine_options
@chat_template_option
@sampling_options
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def command(
    libraries: tuple[Path, ...],
    host: str,
    port: int,
    names: tuple[str, ...],
    memory_limit: int | None,
    page_folder: Path | None,
    page_folder_bytes: int | None,
    load_models: bool,
    api_key_file: str | None,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    max_body: int | None,
    max_prompt_tokens: int | None,
    max_tokens: int | None,
    max_connections: int | None,
    max_batch: int | None,
    chunk: int | None,
    prefix_cache: bool,
    speculate: int | None,
    draft: str | None,
    device: int | None,
    simulate: bool | None,
    chat_template: str | None,
    responses: Path | None,
    tool_form: str | None,
    traces: str | None,
    adapters: tuple[str, ...],
    load_adapters: bool,
    tensor_parallel: int | None,
    pipeline_parallel: int | None,
    log_level: str,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    min_p: float | None,
    repetition_penalty: float | None,
    **given: Any,
) -> None:
    """Serve compiled models over HTTP with OpenAI's API, and a chat page at /. Requests name the model.

    Sampling options are defaults for requests without them. SIGTERM and Ctrl-C refuse new requests, finish
    those in progress, and end the server; a second one ends it at once.
    """
    for package in ("jinja2", "llguidance"):  # requests need them, the start does not
        import_module(package)
    from tilewright.llm.library_size import library_bytes
    from tilewright.llm.parallel.place import launched_rank
    from tilewright.llm.parallel.runner import Leader
    from tilewright.llm.server.app import application
    from tilewright.llm.server.call_forms import FORMS
    from tilewright.llm.server.http import Lifecycle, Server, make_server
    from tilewright.llm.server.limits import Limits, read_keys
    from tilewright.llm.server.models import Models, ServedModel
    from tilewright.llm.server.service import ANY_NUMBER, Service
    from tilewright.llm.server.tracing import Tracing

    if names and len(names) != len(libraries):
        raise click.UsageError(f"{len(names)} --name for {len(libraries)} models: give none, or one for each")
    for option, value in (("--draft", draft), ("--chat-template", chat_template), ("--adapter", adapters)):
        if value and len(libraries) > 1:
            raise click.UsageError(f"{option} is for a server of one model; this one has {len(libraries)}")
    bounds = {
        "body": max_body,
        "prompt_tokens": max_prompt_tokens,
        "max_tokens": max_tokens,
        "connections": max_connections,
    }
    limits = Limits(**{name: value for name, value in (bounds | given).items() if value is not None})
    keys = read_keys(api_key_file)
    known = {form.name: form for form, _ in FORMS}
    if tool_form is not None and tool_form not in known:
        raise click.UsageError(f"--tool-form {tool_form!r} is unknown; known: {', '.join(known)}")
    call_form = known.get(tool_form or "")
    tracing = None if traces is None else Tracing.to(traces)
    defaults = chosen(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, repetition_penalty=repetition_penalty
    )

    def listen() -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)

    # Checked before the model is loaded, which may take a while. Other ranks of torchrun and mpirun never
    # listen: they follow rank 0, which may have the port on the same machine.
    early = None if launched_rank() else listen()
    lifecycle = Lifecycle()
    files: dict[str, Any] = {"page_folder": page_folder}
    if page_folder_bytes is not None:
        files["page_folder_bytes"] = page_folder_bytes

    leaders: list[Leader] = []
    lost: list[Exception] = []
    running: list[Server] = []

    def end(error: Exception) -> None:
        """The processes of a model are lost."""
        lost.append(error)
        click.echo(f"error: {error}; requests fail, and the server ends", err=True)
        for server in running:
            server.drain()

    def opened(name: str, library: Path) -> Service:
        check_processes(str(library), tensor_parallel, pipeline_parallel)
        engine = open_engine(
            str(library), max_batch, chunk, prefix_cache, speculate, draft, device, simulate, **files,
            queue=ANY_NUMBER,
        )  # fmt: skip
        if isinstance(engine.runner, Leader):
            leaders.append(engine.runner)
            engine.runner.when_lost = end
            if engine.runner.lost is not None:  # while it was being opened
                end(engine.runner.lost)
        set_chat_template(engine.tokenizer, chat_template)
        return Service.of_library(
            name, engine, library, limits=limits, keys=keys, defaults=defaults, call_form=call_form,
            tracing=tracing, lifecycle=lifecycle,
        )  # fmt: skip

    def model_of(name: str, library: Path) -> ServedModel:
        return ServedModel(name, lambda: opened(name, library), library_bytes(library))

    named = zip(names or [library.stem for library in libraries], libraries, strict=True)
    models = Models(
        [model_of(name, library) for name, library in named],
        limits, keys, lifecycle, tracing, memory_limit, model_of,
    )  # fmt: skip
    models.preload()
    for adapter in adapters:
        adapter_name, equals, folder = adapter.partition("=")
        if not (adapter_name and equals and folder):
            raise click.BadParameter(f"{adapter!r} is not NAME=FOLDER", param_hint="--adapter")
        assert models.only is not None
        assert models.only.service is not None
        models.only.service.load_adapter(adapter_name, folder)
    listener = early or listen()
    shown = f"[{host}]" if ":" in host else host
    base = f"http://{shown}:{listener.getsockname()[1]}"

    def ready() -> None:
        click.echo(f"{', '.join(model.name for model in models)} at {base}/v1 (chat: {base}/)")
        for service in models.loaded:
            generates, engine = service.texts.task == "generate", service.engine
            if generates and not (engine.tokenizer.chat_templates or engine.runner.source_kind):
                which = "the model" if models.only is not None else f"the model {service.name!r}"
                warnings.warn(
                    f"{which} has no chat template: chats need --chat-template; /v1/completions and "
                    "/v1/embeddings work without one",
                    stacklevel=1,
                )
        if not keys and host not in ("127.0.0.1", "localhost", "::1"):
            warnings.warn(
                "the server accepts requests of the whole network without an API key; give --api-key-file "
                "to require one",
                stacklevel=1,
            )

    server = make_server(
        application(models, origins, responses, [host, *hosts], load_adapters, load_models),
        lifecycle,
        limits,
        ready,
        log_level=log_level,
    )
    running.append(server)
    try:
        server.run(sockets=[listener])
    finally:
        models.close()
        for leader in leaders:
            leader.close()
    if lost:
        raise click.ClickException(f"the server has ended: {lost[0]}")
