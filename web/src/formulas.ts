/** Sizes that the metadata states as formulas in Python's syntax, such as "4*batch*((seq + 31) // 32)". */

import { ArtifactError, ShapeError } from "./errors.js";
import type { Formula, SolverStep, TensorEntry } from "./metadata.js";

export type Symbols = Readonly<Record<string, number>>;
type Compiled = (symbols: Symbols) => number;

const TOKEN = /\s*(?:(\d+)|([A-Za-z_]\w*)|(\*\*|\/\/|[-+*%(),]))/y;
const cache = new Map<string, Compiled>();

const floorDivide = (a: number, b: number): number => Math.floor(a / b);
const modulo = (a: number, b: number): number => a - b * Math.floor(a / b);

/** The value of a formula; floor division and modulo as in Python. Throws ArtifactError. */
export function evaluate(formula: Formula, symbols: Symbols): number {
  if (typeof formula === "number") return formula;
  let compiled = cache.get(formula);
  if (!compiled) {
    compiled = new Parser(formula).whole();
    cache.set(formula, compiled);
  }
  return compiled(symbols);
}

/** Recursive descent: sum, then product, then negation, then power, then atom. */
class Parser {
  private readonly tokens: string[] = [];
  private at = 0;

  constructor(private readonly text: string) {
    TOKEN.lastIndex = 0;
    while (TOKEN.lastIndex < text.trimEnd().length) {
      const match = TOKEN.exec(text);
      if (!match) throw this.error();
      this.tokens.push((match[1] ?? match[2] ?? match[3]) as string);
    }
  }

  whole(): Compiled {
    const value = this.sum();
    if (this.at < this.tokens.length) throw this.error();
    return value;
  }

  private error(): ArtifactError {
    return new ArtifactError(`the metadata holds a formula that cannot be read: '${this.text}'`);
  }

  private take(...wanted: string[]): string | undefined {
    const token = this.tokens[this.at];
    if (token === undefined || !wanted.includes(token)) return undefined;
    this.at++;
    return token;
  }

  private expect(token: string): void {
    if (!this.take(token)) throw this.error();
  }

  private sum(): Compiled {
    let left = this.term();
    for (let op = this.take("+", "-"); op; op = this.take("+", "-")) {
      const [a, b] = [left, this.term()];
      left = op === "+" ? (s) => a(s) + b(s) : (s) => a(s) - b(s);
    }
    return left;
  }

  private term(): Compiled {
    let left = this.negation();
    for (let op = this.take("*", "//", "%"); op; op = this.take("*", "//", "%")) {
      const [a, b] = [left, this.negation()];
      if (op === "*") left = (s) => a(s) * b(s);
      else if (op === "//") left = (s) => floorDivide(a(s), b(s));
      else left = (s) => modulo(a(s), b(s));
    }
    return left;
  }

  private negation(): Compiled {
    if (!this.take("-")) return this.power();
    const value = this.negation();
    return (s) => -value(s);
  }

  private power(): Compiled {
    const base = this.atom();
    if (!this.take("**")) return base;
    const exponent = this.negation();
    return (s) => base(s) ** exponent(s);
  }

  private atom(): Compiled {
    const token = this.tokens[this.at++];
    if (token === undefined) throw this.error();
    if (/^\d/.test(token)) {
      const value = Number(token);
      return () => value;
    }
    if (token === "(") {
      const inside = this.sum();
      this.expect(")");
      return inside;
    }
    if (!/^[A-Za-z_]/.test(token)) throw this.error();
    if ((token === "min" || token === "max") && this.take("(")) {
      const choose = token === "min" ? Math.min : Math.max;
      const values = [this.sum()];
      while (this.take(",")) values.push(this.sum());
      this.expect(")");
      return (s) => choose(...values.map((value) => value(s)));
    }
    return (symbols) => {
      const value = symbols[token];
      if (value === undefined) throw this.error();
      return value;
    };
  }
}

/** The symbols' values from the sizes of the inputs. Throws ShapeError where sizes contradict each other. */
export function solveSymbols(
  solver: readonly SolverStep[],
  inputs: readonly TensorEntry[],
  shapes: readonly (readonly number[])[],
): Record<string, number> {
  const symbols: Record<string, number> = {};
  const places: Record<string, string> = {};
  for (const step of solver) {
    const size = shapes[step.input]?.[step.dim] as number;
    const name = inputs[step.input]?.name;
    const what = `input '${name}' has size ${size} in dimension ${step.dim}`;
    if (step.symbol === undefined) {
      const formula = step.expr as Formula;
      const value = evaluate(formula, symbols);
      if (value === size) continue;
      const place = places[formula];
      throw new ShapeError(
        place ? `${what}, but '${formula}' is ${value} from ${place}` : `${what}, expected ${value}`,
      );
    }
    symbols[step.symbol] = solved(step, size, what, symbols);
    places[step.symbol] = `dimension ${step.dim} of '${name}'`;
  }
  return symbols;
}

/** The symbol of a step, for which the size is coefficient * symbol + offset. */
function solved(step: SolverStep, size: number, what: string, symbols: Symbols): number {
  const coefficient = evaluate(step.coefficient ?? 1, symbols);
  const rest = size - evaluate(step.offset ?? 0, symbols);
  if (coefficient === 0) throw new ShapeError(`${what}, which no value of '${step.symbol}' allows`);
  const value = floorDivide(rest, coefficient);
  if (value * coefficient !== rest)
    throw new ShapeError(`${what}, which must be a multiple of ${coefficient}`);
  const [lower, upper] = [step.lower ?? null, step.upper ?? null];
  if ((lower !== null && value < lower) || (upper !== null && value > upper)) {
    const bounds = upper === null ? `at least ${lower}` : `between ${lower} and ${upper}`;
    throw new ShapeError(
      value === size
        ? `${what}: '${step.symbol}' must be ${bounds}`
        : `${what}, so '${step.symbol}' is ${value}: it must be ${bounds}`,
    );
  }
  return value;
}
