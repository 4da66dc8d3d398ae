// Checks the compressed size that a page loads for each entry point. The libraries of tokenizers and grammars
// are not counted.
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

/** Entry points, and the most bytes of each after gzip. */
const LIMITS = { "src/index.ts": 60_000, "src/llm.ts": 400_000 };

let failed = false;
for (const [entry, most] of Object.entries(LIMITS)) {
  const { outputFiles } = await build({
    entryPoints: [entry],
    outdir: "size",
    write: false,
    bundle: true,
    splitting: true,
    minify: true,
    format: "esm",
    target: "es2022",
    external: ["node:*", "@mlc-ai/web-xgrammar", "@huggingface/tokenizers"],
  });
  const size = outputFiles.reduce((sum, { contents }) => sum + gzipSync(contents).length, 0);
  console.log(`${entry}: ${size} bytes compressed, at most ${most}`);
  failed ||= size > most;
}
process.exitCode = failed ? 1 : 0;
