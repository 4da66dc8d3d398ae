// Builds dist/: a bundle of each entry point, and the declarations of their types.
import { execFileSync } from "node:child_process";
import { rmSync } from "node:fs";
import { build } from "esbuild";

rmSync("dist", { recursive: true, force: true });
await build({
  entryPoints: ["src/index.ts", "src/worker.ts"],
  outdir: "dist",
  bundle: true,
  splitting: true,
  minify: true,
  sourcemap: true,
  format: "esm",
  target: "es2022",
  platform: "browser",
  external: ["node:*"],
  chunkNames: "chunk-[hash]",
  legalComments: "none",
});
execFileSync("npx", ["tsc", "--emitDeclarationOnly"], { stdio: "inherit" });
