/** The worker of `SchemaChecker`: it converts schemas to grammars and throws them away. */

import type * as Xgrammar from "@mlc-ai/web-xgrammar";
import { RequestError } from "../errors.js";
import { serve } from "../remote.js";
import { parentPort } from "../threads.js";
import { importXgrammar } from "./xgrammar.js";

/** xgrammar writes why it aborts: `[FATAL] json_schema_converter.cc:902: Unsupported type "x"`. */
const REASON = /^\[FATAL\] \S+:\d+: (?:Check failed: \(.*\) is false: )?(.*)/;
let reason = "xgrammar cannot convert it";
let library: Promise<typeof Xgrammar> | null = null;

console.error = (...parts: unknown[]) => {
  reason = REASON.exec(parts.join(" "))?.[1] ?? reason;
};

serve(parentPort(), {
  check: async (schema: string): Promise<void> => {
    library ??= importXgrammar();
    const { Grammar } = await library;
    try {
      (await Grammar.fromJSONSchema(schema)).dispose();
    } catch {
      throw new RequestError(`the JSON schema cannot be used: ${reason}`, "response_format");
    }
  },
});
