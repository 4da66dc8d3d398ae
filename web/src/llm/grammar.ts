/** Outputs constrained by a grammar; xgrammar, which is loaded at the first use, does the matching. */

import type * as Xgrammar from "@mlc-ai/web-xgrammar";
import { asError, RequestError } from "../errors.js";
import { SchemaChecker } from "./schema-check.js";
import type { Tokenizer } from "./tokenizer.js";
import { importXgrammar } from "./xgrammar.js";

/** The state of one output in its grammar. */
export interface Grammar {
  /** The tokens that may come next: token t is bit `t % 8` of byte `t / 8`. */
  mask(): Promise<Uint8Array>;
  accept(token: number): void;
  /** Whether only the end of the text may follow. */
  readonly complete: boolean;
  dispose(): void;
}

/** Makes grammars over a tokenizer's vocabulary. */
export class Grammars {
  private compiler: Promise<Xgrammar.GrammarCompiler> | null = null;
  private library: typeof Xgrammar | null = null;
  private readonly checker = new SchemaChecker();

  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly vocabulary: number,
  ) {}

  /** Constrains an output to JSON that a schema describes. Throws RequestError for a wrong schema. */
  async jsonSchema(schema: object): Promise<Grammar> {
    const compiler = await this.prepared();
    const text = JSON.stringify(schema);
    await this.checker.check(text);
    try {
      // Without freedom in white space, which a model may repeat until its tokens run out.
      const compiled = await compiler.compileJSONSchema(text, false);
      return await this.state(compiled);
    } catch (thrown) {
      throw new RequestError(`the JSON schema cannot be used: ${asError(thrown).message}`, "response_format");
    }
  }

  dispose(): void {
    this.checker.dispose();
  }

  private prepared(): Promise<Xgrammar.GrammarCompiler> {
    this.compiler ??= this.prepare();
    return this.compiler;
  }

  private async prepare(): Promise<Xgrammar.GrammarCompiler> {
    if (!this.tokenizer.eos.length)
      throw new RequestError("the tokenizer has no end-of-text token, which constrained output needs");
    this.library = await importXgrammar();
    const info = await this.library.TokenizerInfo.createTokenizerInfo(
      [...this.tokenizer.names],
      this.tokenizer.vocabularyKind,
      false,
      this.vocabulary,
      [...this.tokenizer.eos],
    );
    return this.library.GrammarCompiler.createGrammarCompiler(info);
  }

  private async state(compiled: Xgrammar.CompiledGrammar): Promise<Grammar> {
    const matcher = await (this.library as typeof Xgrammar).GrammarMatcher.createGrammarMatcher(compiled);
    return {
      async mask() {
        const words = await matcher.getNextTokenBitmask();
        return new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
      },
      accept(token) {
        if (!matcher.isTerminated() && !matcher.acceptToken(token))
          throw new RequestError(`the grammar does not allow token ${token}`);
      },
      get complete() {
        return matcher.isTerminated();
      },
      dispose() {
        matcher.dispose();
        compiled.dispose();
      },
    };
  }
}
