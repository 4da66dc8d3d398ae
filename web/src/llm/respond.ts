/** OpenAI's HTTP interface over a model in this browser: a Request in, a Response out. */

import { AbortError, asError, RequestError } from "../errors.js";
import type { ChatModel } from "./load.js";
import type { ChatRequest, CompletionRequest } from "./openai.js";

/** Answers a request to `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings`, `/v1/models` or
 * `/v1/models/NAME`, at any place before `/v1`. It never throws: errors are responses in OpenAI's form, with
 * the name of the error's class as `code` where the model failed. A reader that cancels a streamed body, and
 * the request's signal, end the answer.
 *
 * A service worker calls it in its event `fetch`, so that pages reach the model as they reach a server. */
export async function answerRequest(model: ChatModel, request: Request): Promise<Response> {
  const { pathname } = new URL(request.url);
  const path = pathname.slice(pathname.lastIndexOf("/v1/"));
  try {
    if (path === "/v1/models" || path.startsWith("/v1/models/")) {
      refuseOther(request, "GET");
      return models(model, decodeURIComponent(path.slice("/v1/models/".length)));
    }
    const act = ACTIONS[path];
    if (!act) return failure(404, `unknown path ${pathname}`);
    refuseOther(request, "POST");
    const body = await bodyOf(request);
    if (body.model !== undefined && body.model !== model.info.name) return missing(model, String(body.model));
    return await act(model, body, request.signal);
  } catch (thrown) {
    return failed(thrown);
  }
}

type Body = Record<string, unknown> & { readonly stream?: boolean };
type Act = (model: ChatModel, body: Body, signal: AbortSignal) => Promise<Response>;

class MethodError extends Error {}

const ACTIONS: Readonly<Record<string, Act | undefined>> = {
  "/v1/chat/completions": (model, body, signal) =>
    answer(body, signal, (options) => model.chat.completions.create(body as unknown as ChatRequest, options)),
  "/v1/completions": (model, body, signal) =>
    answer(body, signal, (options) =>
      model.completions.create(body as unknown as CompletionRequest, options),
    ),
  "/v1/embeddings": async (model, body) => {
    const { input } = body;
    const texts = typeof input === "string" ? [input] : input;
    if (!Array.isArray(texts) || !texts.every((text) => typeof text === "string"))
      throw new RequestError("'input' must be a text or a list of texts", "input");
    return json(200, await model.embeddings.create({ input: texts }));
  },
};

async function answer(
  body: Body,
  signal: AbortSignal,
  create: (options: { signal: AbortSignal }) => Promise<unknown>,
): Promise<Response> {
  if (!body.stream) return json(200, await create({ signal }));
  const left = new AbortController();
  const chunks = (await create({ signal: AbortSignal.any([signal, left.signal]) })) as AsyncIterable<unknown>;
  const reader = chunks[Symbol.asyncIterator]();
  let next = await reader.next(); // so that a request that is refused gets an error's status
  const utf8 = new TextEncoder();
  const event = (value: unknown): Uint8Array => utf8.encode(`data: ${JSON.stringify(value)}\n\n`);
  const stream = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          if (next.done) {
            controller.enqueue(utf8.encode("data: [DONE]\n\n"));
            controller.close();
            return;
          }
          controller.enqueue(event(next.value));
          next = await reader.next();
        } catch (thrown) {
          controller.enqueue(event(errorBody(...described(thrown))));
          controller.close();
        }
      },
      async cancel() {
        left.abort();
        await reader.return?.().catch(() => undefined); // of an answer that waits to be read
      },
    },
    { highWaterMark: 0 },
  );
  return new Response(stream, {
    headers: { "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store" },
  });
}

function models(model: ChatModel, name: string): Response {
  const { info } = model;
  const about = {
    id: info.name,
    object: "model",
    created: 0,
    owned_by: "tilewright",
    max_model_len: info.context,
  };
  if (!name) return json(200, { object: "list", data: [about] });
  return name === info.name ? json(200, about) : missing(model, name);
}

function refuseOther(request: Request, method: string): void {
  if (request.method !== method) throw new MethodError(`use ${method}, not ${request.method}`);
}

async function bodyOf(request: Request): Promise<Body> {
  let body: unknown;
  try {
    body = await request.json();
  } catch (thrown) {
    throw new RequestError(`the body is not JSON: ${asError(thrown).message}`);
  }
  if (typeof body !== "object" || body === null || Array.isArray(body))
    throw new RequestError("the body must be a JSON object");
  return body as Body;
}

type Described = [status: number, message: string, param: string | null, code: string | null];

/** How a response tells an error. */
function described(thrown: unknown): Described {
  const { name, message } = asError(thrown);
  if (thrown instanceof RequestError) return [400, message, thrown.param, thrown.code];
  if (thrown instanceof MethodError) return [405, message, null, null];
  return [thrown instanceof AbortError ? 499 : 500, message, null, name];
}

function errorBody(status: number, message: string, param: string | null, code: string | null): unknown {
  const kinds: Record<number, string> = { 404: "not_found_error" };
  const type = kinds[status] ?? (status < 500 ? "invalid_request_error" : "server_error");
  return { error: { message, type, param, code } };
}

function failed(thrown: unknown): Response {
  const told = described(thrown);
  return json(told[0], errorBody(...told));
}

function failure(status: number, message: string, param: string | null = null, code: string | null = null) {
  return json(status, errorBody(status, message, param, code));
}

function missing(model: ChatModel, name: string): Response {
  const message = `model '${name}' does not exist; this page has '${model.info.name}'`;
  return failure(404, message, "model", "model_not_found");
}

function json(status: number, value: unknown): Response {
  return new Response(JSON.stringify(value), { status, headers: { "Content-Type": "application/json" } });
}
