/** Requests to OpenAI's interface, which a server or the model of this page answers. */

/** `fetch`, or the model of this page in its place. Paths are relative to the page. */
export type Ask = (path: string, request?: RequestInit) => Promise<Response>;

/** A part of a message: a text, or an image. */
export type Part =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "image_url"; readonly image_url: { readonly url: string } };

/** The content of a message: a text, or its parts if it has images. */
export function contentOf(text: string, images: readonly string[] = []): string | readonly Part[] {
  if (!images.length) return text;
  const shown: Part[] = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return [...shown, { type: "text", text }];
}

/** The body of a request. Undefined fields are left out. */
export interface ReplyRequest {
  readonly model: string;
  readonly messages: readonly { readonly role: string; readonly content: string | readonly Part[] }[];
  readonly temperature?: number | undefined;
  readonly top_p?: number | undefined;
  readonly max_tokens?: number | undefined;
  readonly seed?: number | undefined;
}

interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
}

interface Event_ {
  readonly error?: { readonly message: string; readonly code?: string | null };
  readonly usage?: Usage | null;
  readonly choices?: readonly {
    readonly delta?: { readonly content?: string | null };
    readonly finish_reason?: string | null;
  }[];
}

/** An error that a response tells; `code` is for programs. */
export class ReplyError extends Error {
  constructor(
    message: string,
    readonly code: string | null = null,
  ) {
    super(message);
  }
}

/** Figures of a reply. Times are milliseconds. */
export class Figures {
  usage: Usage | null = null;
  finishReason: string | null = null;
  private readonly begin = performance.now();
  private first = 0;
  private last = 0;

  count(): void {
    this.last = performance.now();
    this.first ||= this.last;
  }

  /** A line of text: tokens, time to the first one, and tokens a second after it. A reply that was stopped
   * has no count of tokens. */
  describe(): string {
    if (!this.first) return "";
    const parts = [`first after ${((this.first - this.begin) / 1000).toFixed(2)} s`];
    if (this.usage) {
      const { prompt_tokens, completion_tokens } = this.usage;
      const rate = (completion_tokens - 1) / ((this.last - this.first) / 1000);
      parts.unshift(`${prompt_tokens} + ${completion_tokens} tokens`);
      if (rate > 0 && Number.isFinite(rate)) parts.push(`${rate.toFixed(1)} tokens/s`);
    }
    return parts.join(" · ");
  }
}

/** The parts of the text of a reply. */
export async function* reply(
  ask: Ask,
  headers: Record<string, string>,
  request: ReplyRequest,
  figures: Figures,
  signal: AbortSignal,
): AsyncGenerator<string> {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await responseError(response);
  for await (const { error, usage, choices } of events(response)) {
    if (error) throw new ReplyError(error.message, error.code ?? null);
    figures.usage = usage ?? figures.usage;
    const [choice] = choices ?? [];
    figures.finishReason = choice?.finish_reason ?? figures.finishReason;
    const text = choice?.delta?.content;
    if (!text) continue;
    figures.count();
    yield text;
  }
  if (!figures.finishReason)
    throw new ReplyError("the connection ended before the reply: send the message again");
}

/** The error in a response with an error's status. */
export async function responseError(response: Response): Promise<ReplyError> {
  const body = (await response.json().catch(() => null)) as Event_ | null;
  return new ReplyError(
    body?.error?.message ?? `${response.status} ${response.statusText}`,
    body?.error?.code ?? null,
  );
}

/** The data of each server-sent event of a response, parsed as JSON. */
async function* events(response: Response): AsyncGenerator<Event_> {
  const decoder = new TextDecoder();
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  let incomplete = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (incomplete + decoder.decode(value, { stream: true })).split("\n\n");
    incomplete = parts.pop() as string;
    for (const part of parts)
      for (const line of part.split("\n"))
        if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6)) as Event_;
  }
}
