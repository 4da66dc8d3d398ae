// Builds dist/: modules that import their dependencies, for Node and for bundlers; dist/bundle/: the same
// with the dependencies inside, for pages without a bundler; and the declarations of types.
import { execFileSync } from "node:child_process";
import { rmSync } from "node:fs";
import { build } from "esbuild";

rmSync("dist", { recursive: true, force: true });
const options = {
  entryPoints: {
    index: "src/index.ts",
    worker: "src/worker.ts",
    thread: "src/wasm/thread.ts",
    llm: "src/llm.ts",
    "llm-worker": "src/llm/worker.ts",
    "schema-worker": "src/llm/schema-worker.ts",
  },
  bundle: true,
  splitting: true,
  format: "esm",
  target: "es2022",
  sourcemap: true,
  chunkNames: "chunk-[hash]",
  legalComments: "none",
};
await build({ ...options, outdir: "dist", packages: "external" });
await build({
  ...options,
  outdir: "dist/bundle",
  minify: true,
  external: ["node:*", "url", "module"], // what dependencies import in Node only
});
execFileSync("npx", ["tsc", "--emitDeclarationOnly"], { stdio: "inherit" });
