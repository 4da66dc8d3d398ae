"""`tilewright llm chat-page FOLDER`: a page that runs a model in the browser."""

from __future__ import annotations

import click


@click.command("chat-page")
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option("--serve", is_flag=True, help="Serve the folder until Ctrl-C.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on, with --serve.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on, with --serve; 0 for any free one.",
)
def command(folder: str, serve: bool, host: str, port: int) -> None:
    """Write a chat page into FOLDER, which `llm compile` made for webgpu or wasm32.

    Any server of static files can serve the folder. The model runs in the browser, also without a network
    after the first visit.
    """
    from tilewright.llm.chat_page import page_server, write_chat_page

    page = write_chat_page(folder)
    click.echo(f"{page} written")
    if not serve:
        return
    try:
        server = page_server(folder, host, port)
    except OSError as error:
        raise click.ClickException(f"{host}:{port} cannot be used: {error.strerror or error}") from error
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"http://{shown}:{server.server_port}/")
    if host not in ("127.0.0.1", "localhost", "::1"):
        click.echo("Browsers give threads, GPUs and storage only to pages from https.", err=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
