// Checks the compressed sizes of what a page loads: an entry point with all chunks that it can import.
import { readdirSync, readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

/** Entry points, the most bytes of each after gzip, and chunks that are loaded only when they are used. */
const LIMITS = [
  { entry: "index.js", most: 60_000 },
  { entry: "llm.js", most: 400_000 },
];

function reached(name, found = new Set()) {
  if (found.has(name)) return found;
  found.add(name);
  const text = readFileSync(`dist/${name}`, "utf8");
  for (const [, file] of text.matchAll(/["']\.\/([\w-]+\.js)["']/g)) reached(file, found);
  return found;
}

let failed = false;
for (const { entry, most } of LIMITS) {
  if (!readdirSync("dist").includes(entry)) continue;
  const files = [...reached(entry)];
  const size = files.reduce((sum, file) => sum + gzipSync(readFileSync(`dist/${file}`)).length, 0);
  console.log(`${entry}: ${size} bytes compressed in ${files.length} files, at most ${most}`);
  failed ||= size > most;
}
process.exitCode = failed ? 1 : 0;
