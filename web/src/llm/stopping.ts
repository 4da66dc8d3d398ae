/** Ends text at a stop string, which may begin in one token and end in another. */

export class StopStrings {
  private held = "";

  constructor(private readonly stops: readonly string[]) {}

  /** Adds text; returns the text to give out now, and whether a stop string has ended the output. Text that
   * may become a stop string is held back. */
  add(text: string): { text: string; ended: boolean } {
    if (!this.stops.length || !text) return { text, ended: false };
    const whole = this.held + text;
    const start = this.found(whole);
    const end = this.beginning(whole);
    if (start !== null && start <= end) {
      this.held = ""; // else a longer one that begins earlier may still be completed
      return { text: whole.slice(0, start), ended: true };
    }
    this.held = whole.slice(end);
    return { text: whole.slice(0, end), ended: false };
  }

  /** The remaining text, cut at a stop string that `add` left for a longer one. */
  finish(text: string): { text: string; ended: boolean } {
    const whole = this.held + text;
    this.held = "";
    const start = this.found(whole);
    return start === null ? { text: whole, ended: false } : { text: whole.slice(0, start), ended: true };
  }

  private found(text: string): number | null {
    const starts = this.stops.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
    return starts.length ? Math.min(...starts) : null;
  }

  /** Where the longest end of `text` begins that is the beginning of a stop string. */
  private beginning(text: string): number {
    let longest = 0;
    for (const stop of this.stops)
      for (let n = Math.min(stop.length - 1, text.length); n > longest; n--)
        if (text.endsWith(stop.slice(0, n))) {
          longest = n;
          break;
        }
    return text.length - longest;
  }
}
