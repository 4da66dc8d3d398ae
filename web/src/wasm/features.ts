/** The abilities of this WebAssembly engine. */

/** A function of i8x16.relaxed_swizzle. */
const RELAXED = [
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0, 65, 1, 253, 15, 65, 2,
  253, 15, 253, 128, 2, 11,
];
/** The most threads by default. Browsers run beside other programs, and few kernels keep more busy. */
const MOST_THREADS = 8;
const PAGE = 65536; // bytes
/** The limits in pages that a shared memory may get: engines reserve addresses for all of it at once. */
const MAXIMA = [65535, 32768, 16384, 8192];

export function hasRelaxedSimd(): boolean {
  return WebAssembly.validate(Uint8Array.from(RELAXED));
}

/** Whether memory can be shared with a worker: in pages it needs cross-origin isolation. */
export function canShareMemory(): boolean {
  return (globalThis as { crossOriginIsolated?: boolean }).crossOriginIsolated !== false && hasSharedMemory();
}

/** Whether modules with threads run, though perhaps on one thread. */
export function hasSharedMemory(): boolean {
  try {
    sharedMemory(0);
    return true;
  } catch {
    return false;
  }
}

/** A shared memory for a module that first needs `bytes`. Throws RangeError where there is none. */
export function sharedMemory(bytes: number): WebAssembly.Memory {
  const initial = pagesOf(bytes);
  for (const maximum of bytes ? MAXIMA : [1])
    if (initial <= maximum)
      try {
        return new WebAssembly.Memory({ initial, maximum, shared: true });
      } catch (thrown) {
        if (!(thrown instanceof RangeError)) throw thrown;
      }
  throw new RangeError(`${bytes} bytes of shared memory cannot be allocated`);
}

export function pagesOf(bytes: number): number {
  return Math.ceil(bytes / PAGE);
}

/** The number of threads for a model where the program asks for at most `most`: at least 1. The default is
 * the number of cores that the processor seems to have: two threads of one core are no faster than one. */
export function threadCount(most?: number): number {
  const mayWait = typeof document === "undefined"; // a page's main thread must not wait for others
  if (!mayWait || !canShareMemory()) return 1;
  const processors = navigatorConcurrency();
  const cores = processors <= 2 ? processors : Math.ceil(processors / 2);
  return Math.max(1, Math.floor(most ?? Math.min(cores, MOST_THREADS)));
}

/** The processors that this program may use. Node has had `navigator` since version 21. */
function navigatorConcurrency(): number {
  const { navigator, process } = globalThis as {
    navigator?: { hardwareConcurrency?: number };
    process?: { getBuiltinModule?(name: string): { availableParallelism(): number } | undefined };
  };
  const found =
    navigator?.hardwareConcurrency ?? process?.getBuiltinModule?.("node:os")?.availableParallelism();
  return found ?? 1;
}
