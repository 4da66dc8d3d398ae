/** OpenAI's chat and completion API over an engine. Requests and answers have the forms of the server. */

import { RequestError } from "../errors.js";
import type { Engine, EngineRequest, Output } from "./engine.js";
import { Fields } from "./fields.js";
import type { SamplingParameters, TokenLogprob } from "./sampling.js";
import type { Delta, FinishReason } from "./sequence.js";
import type { Tokenizer } from "./tokenizer.js";

export interface ChatMessage {
  readonly role: "system" | "developer" | "user" | "assistant";
  readonly content: string | readonly { readonly type: "text"; readonly text: string }[];
}

export type ResponseFormat =
  | { readonly type: "text" }
  | { readonly type: "json_object" }
  | {
      readonly type: "json_schema";
      readonly json_schema: { readonly name: string; readonly schema?: object; readonly strict?: boolean };
    };

interface CommonRequest {
  readonly model?: string;
  readonly temperature?: number;
  readonly top_p?: number;
  readonly top_k?: number;
  readonly min_p?: number;
  readonly repetition_penalty?: number;
  readonly frequency_penalty?: number;
  readonly presence_penalty?: number;
  readonly logit_bias?: Readonly<Record<string, number>>;
  readonly seed?: number;
  readonly stop?: string | readonly string[];
  readonly n?: number;
  readonly max_tokens?: number;
  readonly ignore_eos?: boolean;
  readonly stream?: boolean;
  readonly stream_options?: { readonly include_usage?: boolean };
}

export interface ChatRequest extends CommonRequest {
  readonly messages: readonly ChatMessage[];
  readonly max_completion_tokens?: number;
  readonly logprobs?: boolean;
  readonly top_logprobs?: number;
  readonly response_format?: ResponseFormat;
  readonly chat_template_kwargs?: Readonly<Record<string, unknown>>;
}

export interface CompletionRequest extends CommonRequest {
  readonly prompt: string | readonly number[];
  readonly logprobs?: number;
  readonly echo?: boolean;
}

export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number };
}

interface LogprobEntry {
  readonly token: string;
  readonly bytes: readonly number[];
  readonly logprob: number;
}

interface TokenEntry extends LogprobEntry {
  readonly top_logprobs: readonly LogprobEntry[];
}

interface Answered<Object_ extends string, Choice> {
  readonly id: string;
  readonly object: Object_;
  readonly created: number;
  readonly model: string;
  readonly choices: readonly Choice[];
  readonly usage?: Usage;
}

export type ChatCompletionChunk = Answered<
  "chat.completion.chunk",
  {
    readonly index: number;
    readonly delta: { readonly role?: "assistant"; readonly content?: string };
    readonly logprobs: { readonly content: readonly TokenEntry[] } | null;
    readonly finish_reason: FinishReason | null;
  }
>;

export type ChatCompletion = Answered<
  "chat.completion",
  {
    readonly index: number;
    readonly message: { readonly role: "assistant"; readonly content: string; readonly refusal: null };
    readonly logprobs: { readonly content: readonly TokenEntry[] } | null;
    readonly finish_reason: FinishReason;
  }
>;

export type Completion = Answered<
  "text_completion",
  {
    readonly index: number;
    readonly text: string;
    readonly logprobs: { readonly content: readonly TokenEntry[] } | null;
    readonly finish_reason: FinishReason | null;
  }
>;

/** An answer: read its parts as they come, or wait for the whole. */
export interface Answer<Chunk, Whole> {
  chunks(): AsyncIterable<Chunk>;
  whole(): Promise<Whole>;
  abort(): void;
}

const MOST_CHOICES = 128;
const MOST_TOKENS = 2 ** 31;

/** Queues a chat. Throws RequestError, which names the field at fault. */
export async function chat(
  engine: Engine,
  model: string,
  body: ChatRequest,
): Promise<Answer<ChatCompletionChunk, ChatCompletion>> {
  const fields = new Fields(body as unknown as Record<string, unknown>);
  const messages = messagesOf(fields.value("messages"));
  const limits = [
    fields.integer("max_tokens", 1, MOST_TOKENS),
    fields.integer("max_completion_tokens", 1, MOST_TOKENS),
  ];
  if (limits[0] !== undefined && limits[1] !== undefined && limits[0] !== limits[1])
    throw new RequestError("'max_tokens' and 'max_completion_tokens' mean the same: send one", "max_tokens");
  const wantsLogprobs = fields.boolean("logprobs");
  const top = fields.integer("top_logprobs", 0, 20);
  if (top !== undefined && !wantsLogprobs)
    throw new RequestError("top_logprobs needs logprobs: true", "top_logprobs");
  const schema = schemaOf(fields.object("response_format"));
  const variables = fields.object("chat_template_kwargs") ?? {};
  const common = commonOf(fields, wantsLogprobs ? (top ?? 0) : null);
  fields.refuseOthers();
  const text = engine.tokenizer.render(messages, variables);
  const prompt = engine.tokenizer.encode(text, false);
  const output = await engine.submit({ ...common, prompt, schema, maxTokens: limits[1] ?? limits[0] });
  const account = new Account(engine.tokenizer, output, prompt.length, common.n);
  const about = { id: newId("chatcmpl"), created: now(), model };
  const usage = body.stream_options?.include_usage === true;
  return {
    abort: () => output.abort(),
    async *chunks(): AsyncGenerator<ChatCompletionChunk> {
      const chunk = (choices: ChatCompletionChunk["choices"]): ChatCompletionChunk => ({
        ...about,
        object: "chat.completion.chunk",
        choices,
      });
      for (let index = 0; index < common.n; index++)
        yield chunk([
          { index, delta: { role: "assistant", content: "" }, logprobs: null, finish_reason: null },
        ]);
      for await (const delta of account.deltas()) {
        if (!delta.text && !delta.finishReason && !wantsLogprobs) continue;
        yield chunk([
          {
            index: delta.index,
            delta: delta.text ? { content: delta.text } : {},
            logprobs: wantsLogprobs ? { content: account.entries(delta.logprobs) } : null,
            finish_reason: delta.finishReason,
          },
        ]);
      }
      if (usage) yield { ...chunk([]), usage: account.usage() };
    },
    async whole(): Promise<ChatCompletion> {
      const choices = await account.collect();
      return {
        ...about,
        object: "chat.completion",
        choices: choices.map(({ text, logprobs, finishReason }, index) => ({
          index,
          message: { role: "assistant", content: text, refusal: null },
          logprobs: wantsLogprobs ? { content: logprobs } : null,
          finish_reason: finishReason,
        })),
        usage: account.usage(),
      };
    },
  };
}

/** Queues a text to continue. Throws RequestError. */
export async function completion(
  engine: Engine,
  model: string,
  body: CompletionRequest,
): Promise<Answer<Completion, Completion>> {
  const fields = new Fields(body as unknown as Record<string, unknown>);
  const given = fields.value("prompt");
  const isTokens = Array.isArray(given) && given.every((token) => Number.isSafeInteger(token));
  if (typeof given !== "string" && !isTokens)
    throw new RequestError("'prompt' must be a text, or a list of tokens", "prompt");
  const prompt = typeof given === "string" ? engine.tokenizer.encode(given, true) : (given as number[]);
  const maxTokens = fields.integer("max_tokens", 1, MOST_TOKENS) ?? 16;
  const top = fields.integer("logprobs", 0, 20);
  const echo = fields.boolean("echo");
  const common = commonOf(fields, top ?? null);
  fields.refuseOthers();
  const output = await engine.submit({ ...common, prompt, schema: null, maxTokens });
  const account = new Account(engine.tokenizer, output, prompt.length, common.n);
  const about = { id: newId("cmpl"), created: now(), model, object: "text_completion" as const };
  const before = echo ? (typeof given === "string" ? given : engine.tokenizer.decode(prompt)) : "";
  return {
    abort: () => output.abort(),
    async *chunks(): AsyncGenerator<Completion> {
      const begun = new Set<number>();
      for await (const { index, text, logprobs, finishReason } of account.deltas()) {
        const start = begun.has(index) ? "" : before;
        begun.add(index);
        yield {
          ...about,
          choices: [
            {
              index,
              text: start + text,
              logprobs: top === undefined ? null : { content: account.entries(logprobs) },
              finish_reason: finishReason,
            },
          ],
        };
      }
      if (body.stream_options?.include_usage) yield { ...about, choices: [], usage: account.usage() };
    },
    async whole(): Promise<Completion> {
      const choices = await account.collect();
      return {
        ...about,
        choices: choices.map(({ text, logprobs, finishReason }, index) => ({
          index,
          text: before + text,
          logprobs: top === undefined ? null : { content: logprobs },
          finish_reason: finishReason,
        })),
        usage: account.usage(),
      };
    },
  };
}

const now = (): number => Math.floor(Date.now() / 1000);
const newId = (kind: string): string => `${kind}-${crypto.randomUUID().replaceAll("-", "").slice(0, 24)}`;

/** The messages as chat templates read them. */
function messagesOf(value: unknown): Record<string, unknown>[] {
  if (!Array.isArray(value) || !value.length)
    throw new RequestError("'messages' must be a list of at least one message", "messages");
  return value.map((message, index) => {
    const where = `messages.${index}`;
    const { role, content } = (message ?? {}) as Record<string, unknown>;
    if (!["system", "developer", "user", "assistant"].includes(role as string))
      throw new RequestError(
        `'${where}.role' is ${JSON.stringify(role)}; it must be system, developer, user or assistant`,
        `${where}.role`,
      );
    const parts = Array.isArray(content) ? content : [{ type: "text", text: content }];
    for (const part of parts)
      if (part?.type !== "text" || typeof part.text !== "string")
        throw new RequestError(
          `'${where}.content' must be text: the model takes text only`,
          `${where}.content`,
        );
    return {
      role: role === "developer" ? "system" : role,
      content: parts.map(({ text }) => text).join(""),
    };
  });
}

function schemaOf(format: Readonly<Record<string, unknown>> | undefined): object | null {
  if (!format || format.type === "text") return null;
  if (format.type === "json_object") return { type: "object" };
  const { schema } = (format.json_schema ?? {}) as { schema?: unknown };
  if (format.type !== "json_schema" || typeof schema !== "object" || schema === null)
    throw new RequestError(
      "'response_format' must have the type text, json_object, or json_schema with json_schema.schema",
      "response_format",
    );
  return schema;
}

/** The fields that chats and completions share. */
function commonOf(
  fields: Fields,
  logprobs: number | null,
): Pick<EngineRequest, "sampling" | "stop" | "ignoreEos" | "n" | "seed"> {
  const topP = fields.number("top_p", 0, 1, 1);
  if (topP === 0) throw new RequestError("'top_p' is 0; it must be more than 0, at most 1", "top_p");
  const sampling: SamplingParameters = {
    temperature: fields.number("temperature", 0, 2, 1),
    topP,
    topK: Math.max(0, fields.integer("top_k", -1, MOST_TOKENS) ?? 0),
    minP: fields.number("min_p", 0, 1, 0),
    repetitionPenalty: fields.number("repetition_penalty", 0.01, 10, 1),
    frequencyPenalty: fields.number("frequency_penalty", -2, 2, 0),
    presencePenalty: fields.number("presence_penalty", -2, 2, 0),
    logitBias: new Map(
      Object.entries(fields.object("logit_bias") ?? {}).map(([token, bias]) => {
        if (!/^\d+$/.test(token) || typeof bias !== "number" || !(Math.abs(bias) <= 100))
          throw new RequestError("'logit_bias' maps tokens to numbers from -100 to 100", "logit_bias");
        return [Number(token), bias] as const;
      }),
    ),
    logprobs,
  };
  const seed = fields.integer("seed", Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER);
  return {
    sampling,
    stop: fields.texts("stop", 16),
    ignoreEos: fields.boolean("ignore_eos"),
    n: fields.integer("n", 1, MOST_CHOICES) ?? 1,
    seed: seed === undefined ? undefined : BigInt.asUintN(64, BigInt(seed)),
  };
}

interface Collected {
  text: string;
  logprobs: TokenEntry[];
  finishReason: FinishReason;
}

/** Counts the tokens of an output while it is read. */
class Account {
  private tokens = 0;

  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly output: Output,
    private readonly promptTokens: number,
    private readonly choices: number,
  ) {}

  async *deltas(): AsyncGenerator<Delta> {
    for await (const delta of this.output) {
      this.tokens += delta.tokens.length;
      yield delta;
    }
  }

  async collect(): Promise<Collected[]> {
    const choices = Array.from(
      { length: this.choices },
      (): Collected => ({
        text: "",
        logprobs: [],
        finishReason: "length",
      }),
    );
    for await (const { index, text, logprobs, finishReason } of this.deltas()) {
      const choice = choices[index] as Collected;
      choice.text += text;
      choice.logprobs.push(...this.entries(logprobs));
      choice.finishReason = finishReason ?? choice.finishReason;
    }
    return choices;
  }

  usage(): Usage {
    return {
      prompt_tokens: this.promptTokens,
      completion_tokens: this.tokens,
      total_tokens: this.promptTokens + this.tokens,
      prompt_tokens_details: { cached_tokens: this.output.cachedTokens },
    };
  }

  entries(logprobs: readonly TokenLogprob[]): TokenEntry[] {
    const one = (token: number, logprob: number): LogprobEntry => {
      const bytes = this.tokenizer.bytesOf(token);
      // JSON has no infinity; OpenAI writes -9999 for an impossible token.
      return {
        token: new TextDecoder().decode(bytes),
        bytes: [...bytes],
        logprob: Math.max(logprob, -9999),
      };
    };
    return logprobs.map(({ token, logprob, top }) => ({
      ...one(token, logprob),
      top_logprobs: top.map(([other, value]) => one(other, value)),
    }));
  }
}
