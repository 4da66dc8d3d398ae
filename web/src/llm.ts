/** Language models in browsers, Node and Deno, with the calls of OpenAI's client. */

export * from "./errors.js";
export { clearStorage, type Progress } from "./fetching.js";
export type { Statistics } from "./llm/engine.js";
export { isKept, type MemoryNeed, type ModelInfo, modelInfo } from "./llm/folder.js";
export { type CallOptions, type ChatModel, type LoadChatOptions, loadChatModel } from "./llm/load.js";
export type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatMessage,
  ChatRequest,
  Completion,
  CompletionRequest,
  ResponseFormat,
  Usage,
} from "./llm/openai.js";
export { answerRequest } from "./llm/respond.js";
