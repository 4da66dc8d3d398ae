/** Parts of an answer for one reader, as they come. */
export class Queue<Part> {
  /** Whether nothing more comes. */
  ended = false;
  private readonly held: Part[] = [];
  private error: Error | null = null;
  private wake: () => void = () => undefined;

  push(part: Part): void {
    this.held.push(part);
    this.wake();
  }

  end(): void {
    this.ended = true;
    this.wake();
  }

  /** Ends with an error, which the reader gets behind the parts so far. The first error counts. */
  fail(error: Error): void {
    this.error ??= error;
    this.end();
  }

  async *read(): AsyncGenerator<Part> {
    for (;;) {
      while (this.held.length) yield this.held.shift() as Part;
      if (this.error) throw this.error;
      if (this.ended) return;
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
  }
}
