import { mkdtempSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { AbortError, ArtifactError } from "../src/errors.js";
import { readParts, readWhole } from "../src/fetching.js";
import { hashOf } from "../src/hashing.js";

const content = Uint8Array.from({ length: 300_000 }, (_, k) => (k * 31) % 251);
let server: Server;
let address: string;

beforeAll(async () => {
  server = createServer(({ url }, response) => {
    if (url === "/file") response.writeHead(200, { "content-length": content.length }).end(content);
    else if (url === "/slow") response.writeHead(200).write(content.subarray(0, 1000));
    else if (url === "/broken") {
      response.writeHead(200, { "content-length": content.length }).write(content.subarray(0, 1000));
      setTimeout(() => response.destroy(), 20);
    } else response.writeHead(404).end();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

it("reads a file with its progress", async () => {
  const seen: number[] = [];
  const identity = await hashOf(content);
  const bytes = await readWhole(`${address}/file`, {
    identity,
    bytes: content.length,
    onProgress: ({ loaded, total }) => {
      expect(total).toBe(content.length);
      seen.push(loaded);
    },
  });
  expect(Buffer.compare(bytes, content)).toBe(0);
  expect(seen.at(-1)).toBe(content.length);
});

it("reads files on disk, blobs and bytes", async () => {
  const path = join(mkdtempSync(join(tmpdir(), "tilewright-")), "file");
  writeFileSync(path, content);
  for (const source of [path, new Blob([content]), content, content.buffer as ArrayBuffer])
    expect(Buffer.compare(await readWhole(source), content)).toBe(0);
  const floats = new Float32Array(content.buffer, 4, 2);
  expect([...(await readWhole(floats))]).toEqual([...content.subarray(4, 12)]);
});

it("hashes from a given byte on", async () => {
  const identity = await hashOf(content.subarray(4096));
  const sink = (): void => undefined;
  await readParts(`${address}/file`, sink, { identity, from: 4096 });
  await expect(readParts(`${address}/file`, sink, { identity })).rejects.toThrow(/its checksum is not/);
});

it.each([
  ["/nothing", /\/nothing: the server answered 404/],
  ["/broken", /\/broken: the connection broke/],
])("tells what happened to %s", async (path, message) => {
  const failed = readWhole(`${address}${path}`);
  await expect(failed).rejects.toThrow(message);
  await expect(failed).rejects.toBeInstanceOf(ArtifactError);
});

it("tells that a server is down", async () => {
  await expect(readWhole("http://127.0.0.1:9/file")).rejects.toThrow(/cannot be downloaded.*CORS/);
});

it("tells a wrong size", async () => {
  const failed = readWhole(`${address}/file`, { bytes: 5 });
  await expect(failed).rejects.toThrow("5 bytes expected, 300000 received");
});

it("can be aborted", async () => {
  const controller = new AbortController();
  setTimeout(() => controller.abort(), 30);
  const failed = readWhole(`${address}/slow`, { signal: controller.signal });
  await expect(failed).rejects.toBeInstanceOf(AbortError);
});
