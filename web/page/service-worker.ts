/** The service worker of a chat page. It keeps the page, the runtime and the small files of the model: all of
 * one version, checked by their hashes, or none. The runtime keeps the weights itself.
 *
 * It adds the headers of cross-origin isolation, which threads need and many servers of static files do not
 * send. */

/** The list that `tilewright llm chat-page` writes before this text: paths below the scope, with SHA-256. */
interface Files {
  readonly version: string;
  readonly files: Readonly<Record<string, string>>;
}

const worker = self as unknown as ServiceWorkerGlobalScope & { tilewrightPage: Files };
const { version, files } = worker.tilewrightPage;
const { scope } = worker.registration;
const OURS = `tilewright-page ${scope} `;
const CACHE = OURS + version;
const ISOLATION = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cross-Origin-Resource-Policy": "same-origin",
};

worker.addEventListener("install", (event) => event.waitUntil(install()));
worker.addEventListener("activate", (event) => event.waitUntil(activate()));
worker.addEventListener("message", ({ data }) => {
  if (data === "take over") void worker.skipWaiting();
});
worker.addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  if (method !== "GET" || !url.startsWith(scope)) return;
  const path = new URL(url).pathname.slice(new URL(scope).pathname.length) || "index.html";
  if (Object.hasOwn(files, path)) event.respondWith(answer(path, event.request));
});

async function install(): Promise<void> {
  const cache = await caches.open(CACHE);
  try {
    await Promise.all(Object.entries(files).map(([path, hash]) => keep(cache, path, hash)));
  } catch (thrown) {
    await caches.delete(CACHE); // all of a version, or nothing
    throw thrown;
  }
}

async function keep(cache: Cache, path: string, hash: string): Promise<void> {
  const response = await fetch(new URL(path, scope), { cache: "no-cache" });
  if (!response.ok) throw new Error(`${path}: the server answered ${response.status}`);
  const bytes = await response.arrayBuffer();
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  if ([...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("") !== hash)
    throw new Error(`${path}: the file is of another version of this page, or damaged`);
  const type = response.headers.get("Content-Type") ?? "application/octet-stream";
  await cache.put(
    new URL(path, scope),
    new Response(bytes, { headers: { "Content-Type": type, ...ISOLATION } }),
  );
}

async function activate(): Promise<void> {
  for (const name of await caches.keys())
    if (name.startsWith(OURS) && name !== CACHE) await caches.delete(name);
  await worker.clients.claim();
}

async function answer(path: string, request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  return (await cache.match(new URL(path, scope))) ?? fetch(request);
}
