// Builds dist/: modules that import their dependencies, for Node and for bundlers; dist/bundle/: the same
// with the dependencies inside, for pages without a bundler, and the chat page; and declarations of types.
//
// The Python package contains dist/bundle/, without what only programs in JavaScript need, so that its users
// need no npm, and beside it the page of `tilewright explore`. `node scripts/build.mjs FOLDER` writes only
// these; `npm run bundle` writes them into the package.
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { basename, relative } from "node:path";
import { build } from "esbuild";

const BUNDLE = "dist/bundle";
const ENTRIES = {
  index: "src/index.ts",
  worker: "src/worker.ts",
  thread: "src/wasm/thread.ts",
  llm: "src/llm.ts",
  "llm-worker": "src/llm/worker.ts",
  "schema-worker": "src/llm/schema-worker.ts",
};
const PAGE = { chat: "page/main.ts", "chat-style": "page/chat.css" };
const EXPLORE = "../src/tilewright/explorer/built";
const options = { bundle: true, format: "esm", target: "es2022", legalComments: "none" };
const split = { ...options, splitting: true, chunkNames: "chunk-[hash]" };
const complete = { minify: true, external: ["node:*", "url", "module"] }; // of dependencies, in Node only

const [copy] = process.argv.slice(2);
if (copy) {
  await buildBundle(copy);
  await buildExplore(EXPLORE);
} else {
  rmSync("dist", { recursive: true, force: true });
  await build({ ...split, entryPoints: ENTRIES, outdir: "dist", packages: "external", sourcemap: true });
  await buildBundle(BUNDLE);
  // Service workers cannot import at run time, so theirs is one file.
  await build({ ...options, ...complete, entryPoints: { "llm-service": "src/llm.ts" }, outdir: BUNDLE });
  execFileSync("npx", ["tsc", "--emitDeclarationOnly"], { stdio: "inherit" });
}

async function buildBundle(folder) {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const { metafile } = await build({
    ...split,
    ...complete,
    entryPoints: { ...ENTRIES, ...PAGE },
    outdir: folder,
    metafile: true,
  });
  await build({
    ...options,
    ...complete,
    format: "iife",
    entryPoints: { "page-service-worker": "page/service-worker.ts" },
    outdir: folder,
  });
  cpSync("page/index.html", `${folder}/chat.html`);
  const json = (name, value) => writeFileSync(`${folder}/${name}`, `${JSON.stringify(value, null, 1)}\n`);
  json("page.json", pageFiles(metafile, relative(".", folder)));
  json("package.json", {
    description: "Built from web/ by 'npm run bundle': do not edit",
    type: "module",
    private: true,
  });
  console.log(`${folder}: ${readdirSync(folder).length} files`);
}

/** The parts of the page of `tilewright explore`, which the Python package puts into one file. */
async function buildExplore(folder) {
  mkdirSync(folder, { recursive: true });
  await build({
    ...options,
    minify: true,
    format: "iife",
    entryPoints: { explore: "explore/main.ts", "explore-style": "explore/explore.css" },
    outdir: folder,
  });
  renameSync(`${folder}/explore-style.css`, `${folder}/explore.css`);
  cpSync("explore/index.html", `${folder}/explore.html`);
}

/** The files that the chat page loads beside its HTML: all that its entry points import, but not the library
 * of grammars, which it never uses. */
function pageFiles({ outputs }, folder) {
  const found = new Set();
  const visit = (path) => {
    if (found.has(path) || !outputs[path]) return;
    if (Object.keys(outputs[path].inputs).some((input) => input.includes("web-xgrammar"))) return;
    found.add(path);
    for (const imported of outputs[path].imports) visit(imported.path);
  };
  for (const name of ["chat.js", "chat-style.css", "llm-worker.js", "thread.js"]) visit(`${folder}/${name}`);
  return [...found].map((path) => basename(path)).sort();
}
