/** Loading xgrammar. */

import type * as Xgrammar from "@mlc-ai/web-xgrammar";

/** xgrammar's module is written for `require`. In Node it needs that function and `__filename`. Loaded as a
 * module, it leaves its exports in a global variable. */
export async function importXgrammar(): Promise<typeof Xgrammar> {
  const scope = globalThis as {
    process?: { versions?: { node?: string } };
    require?: unknown;
    __filename?: string;
    xgrammar?: typeof Xgrammar;
  };
  if (scope.process?.versions?.node && scope.require === undefined) {
    const { createRequire } = await import("node:module");
    scope.require = createRequire(import.meta.url);
    scope.__filename = new URL(import.meta.url).pathname;
  }
  const module = await import("@mlc-ai/web-xgrammar");
  return module.Grammar ? module : (scope.xgrammar as typeof Xgrammar);
}
