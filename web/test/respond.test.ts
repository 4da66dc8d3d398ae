import { expect, it } from "vitest";
import { AbortError, DeviceError, RequestError } from "../src/errors.js";
import { answerRequest } from "../src/llm/respond.js";
import type { ChatModel } from "../src/llm.js";

/** A model that answers "a", "b", "c", and records when an answer ends early. */
function modelThat(fails?: { readonly at: number; readonly error: Error }) {
  const ended: string[] = [];
  async function* chunks(signal: AbortSignal) {
    let end = "early";
    try {
      for (const [k, text] of ["a", "b", "c"].entries()) {
        if (fails?.at === k) throw fails.error;
        if (signal.aborted) throw new AbortError("the request was aborted");
        yield { choices: [{ delta: { content: text } }] };
      }
      end = "whole";
    } finally {
      ended.push(end);
    }
  }
  const create = async ({ stream }: { stream?: boolean }, { signal }: { signal: AbortSignal }) => {
    if (stream) return chunks(signal);
    if (fails) throw fails.error;
    return { choices: [{ message: { content: "abc" } }] };
  };
  const model = {
    info: { name: "small", context: 512 },
    chat: { completions: { create } },
    completions: { create },
    embeddings: { create: async ({ input }: { input: string[] }) => ({ data: input.map(() => [1]) }) },
  };
  return { model: model as unknown as ChatModel, ended };
}

const post = (body: unknown, path = "v1/chat/completions", init: RequestInit = {}): Request =>
  new Request(`https://page.example/site/${path}`, {
    method: "POST",
    body: typeof body === "string" ? body : JSON.stringify(body),
    ...init,
  });

const errorOf = async (response: Response) => [response.status, (await response.json()).error];

it("answers whole requests and lists the model", async () => {
  const { model } = modelThat();
  const answer = await answerRequest(model, post({ model: "small", messages: [] }));
  expect(answer.status).toBe(200);
  expect((await answer.json()).choices[0].message.content).toBe("abc");
  const embedded = await answerRequest(model, post({ input: ["x", "y"] }, "v1/embeddings"));
  expect((await embedded.json()).data).toHaveLength(2);
  for (const path of ["v1/models", "v1/models/small"]) {
    const response = await answerRequest(model, new Request(`https://page.example/${path}`));
    const body = await response.json();
    expect((body.data?.[0] ?? body).id).toBe("small");
    expect((body.data?.[0] ?? body).max_model_len).toBe(512);
  }
});

it("streams events and ends them with [DONE]", async () => {
  const { model, ended } = modelThat();
  const response = await answerRequest(model, post({ stream: true, messages: [] }));
  expect(response.headers.get("content-type")).toContain("text/event-stream");
  const events = (await response.text()).split("\n\n").filter(Boolean);
  expect(events.at(-1)).toBe("data: [DONE]");
  const texts = events.slice(0, -1).map((event) => JSON.parse(event.slice(6)).choices[0].delta.content);
  expect(texts).toEqual(["a", "b", "c"]);
  expect(ended).toEqual(["whole"]);
});

it("ends the answer of a reader that goes away", async () => {
  const { model, ended } = modelThat();
  const response = await answerRequest(model, post({ stream: true }));
  const reader = (response.body as ReadableStream).getReader();
  await reader.read();
  await reader.cancel();
  await expect.poll(() => ended).toEqual(["early"]);
});

it("follows the signal of the request", async () => {
  const { model } = modelThat();
  const controller = new AbortController();
  const init = { signal: controller.signal };
  const response = await answerRequest(model, post({ stream: true }, "v1/chat/completions", init));
  controller.abort();
  expect(await response.text()).toContain('"code":"AbortError"');
});

it("tells errors as OpenAI does", async () => {
  const refused = modelThat({ at: 0, error: new RequestError("'top_p' is 2", "top_p") }).model;
  const wanted = { message: "'top_p' is 2", type: "invalid_request_error", param: "top_p", code: null };
  expect(await errorOf(await answerRequest(refused, post({ stream: true })))).toEqual([400, wanted]);
  expect(await errorOf(await answerRequest(refused, post({})))).toEqual([400, wanted]);
  const lost = modelThat({ at: 1, error: new DeviceError("the GPU was lost") }).model;
  expect(await errorOf(await answerRequest(lost, post({})))).toMatchObject([500, { code: "DeviceError" }]);
  const text = await (await answerRequest(lost, post({ stream: true }))).text();
  expect(text).toContain('"the GPU was lost","type":"server_error","param":null,"code":"DeviceError"');
  expect(text).not.toContain("[DONE]");
  const { model } = modelThat();
  const statuses = [
    [post("no JSON"), 400],
    [post([1]), 400],
    [post({ model: "other" }), 404],
    [post({}, "v1/other"), 404],
    [post({}, "v1/models"), 405],
    [post({ input: 3 }, "v1/embeddings"), 400],
    [new Request("https://page.example/v1/completions"), 405],
    [new Request("https://page.example/v1/models/other"), 404],
  ] as const;
  for (const [request, status] of statuses) expect((await answerRequest(model, request)).status).toBe(status);
});
