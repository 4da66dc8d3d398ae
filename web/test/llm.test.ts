import { describe, expect, it } from "vitest";
import { Fields } from "../src/llm/fields.js";
import { PAGE, PageCache } from "../src/llm/pages.js";
import { DEFAULTS, logprobsOf, Sampler, seedOfChoice } from "../src/llm/sampling.js";
import { StopStrings } from "../src/llm/stopping.js";
import { Detokenizer, Tokenizer } from "../src/llm/tokenizer.js";

describe("StopStrings", () => {
  const cut = (stops: string[], parts: string[]): string => {
    const strings = new StopStrings(stops);
    let text = "";
    for (const part of parts) {
      const { text: more, ended } = strings.add(part);
      text += more;
      if (ended) return `${text}|`;
    }
    const { text: more, ended } = strings.finish("");
    return text + more + (ended ? "|" : "");
  };

  it.each([
    [["STOP"], ["a S", "TO", "P b"], "a |"],
    [["STOP"], ["a S", "TO", "X"], "a STOX"],
    [["STOP"], ["a ST"], "a ST"],
    [["ab", "xaby"], ["x", "a", "b", "y"], "|"],
    [["ab", "xabz"], ["x", "a", "b", "y"], "x|"],
    [[], ["any", "thing"], "anything"],
  ])("%j in %j", (stops, parts, expected) => {
    expect(cut(stops, parts)).toBe(expected);
  });
});

describe("PageCache", () => {
  const tokens = (start: number, count = PAGE): number[] =>
    Array.from({ length: count }, (_, k) => start + k);

  it("finds pages by their tokens and evicts the ones used least recently", () => {
    const cache = new PageCache(2);
    const first = cache.insert(cache.root, tokens(0), cache.take() as number);
    cache.use(first);
    const second = cache.insert(first, tokens(100), cache.take() as number);
    cache.use(second);
    expect(cache.take()).toBeUndefined();
    cache.leave([first, second]);
    expect(cache.child(cache.root, tokens(0))).toBe(first);
    expect(cache.take()).toBe(second.page); // a page goes before the one that it follows
    expect(cache.child(first, tokens(100))).toBeUndefined();
    expect(cache.child(cache.root, tokens(0))).toBe(first);
  });

  it("frees a page whose tokens are there already", () => {
    const cache = new PageCache(3);
    const first = cache.insert(cache.root, tokens(0), cache.take() as number);
    cache.settle(first);
    expect(cache.insert(cache.root, tokens(0), cache.take() as number)).toBe(first);
    expect(cache.available).toBe(3);
  });

  it("finds the longest part, and a longer page replaces it", () => {
    const cache = new PageCache(3);
    const part = cache.insert(cache.root, tokens(0, 20), cache.take() as number);
    cache.settle(part);
    expect(cache.longestPart(cache.root, [...tokens(0, 10), 99])).toEqual([part, 10]);
    const whole = cache.insert(cache.root, tokens(0), cache.take() as number);
    cache.settle(whole);
    expect(cache.root.children).toEqual([whole]);
    expect(cache.available).toBe(3);
  });
});

describe("Sampler", () => {
  it("draws the numbers of the Python engine", () => {
    const sampler = new Sampler(DEFAULTS, [1], seedOfChoice(7n, 0), null);
    const numbers = [0, 1, 2].map((step) => sampler.uniform(step));
    expect(numbers).toEqual([0.7916042979842841, 0.33475160914721314, 0.087907239614756]);
  });

  it("applies penalties, biases and masks", () => {
    const parameters = { ...DEFAULTS, repetitionPenalty: 2, presencePenalty: 1, frequencyPenalty: 0.5 };
    const sampler = new Sampler({ ...parameters, logitBias: new Map([[3, 5]]) }, [0], 0n, null);
    sampler.accept(1);
    sampler.accept(1);
    const logits = Float32Array.of(4, 4, -4, 1);
    sampler.adjust(logits, Uint8Array.of(0b1011));
    expect([...logits]).toEqual([2, 0, Number.NEGATIVE_INFINITY, 6]);
    expect(sampler.occurrences()).toEqual([
      [0, 0],
      [1, 2],
    ]);
  });

  it("chooses among the tokens that top_k and top_p leave", () => {
    const logits = Float32Array.of(0, 3, 2.9, -1, 1);
    const chosen = (more: object): Set<number> => {
      const sampler = new Sampler({ ...DEFAULTS, ...more }, [0], 5n, null);
      return new Set(Array.from({ length: 200 }, (_, step) => sampler.choose(logits, step)));
    };
    expect(chosen({ temperature: 0 })).toEqual(new Set([1]));
    expect(chosen({ topK: 2 })).toEqual(new Set([1, 2]));
    expect(chosen({ topP: 0.4 })).toEqual(new Set([1]));
    expect(chosen({ minP: 0.1 })).toEqual(new Set([1, 2, 4]));
  });

  it("gives log-probabilities", () => {
    const { logprob, top } = logprobsOf(Float32Array.of(Math.log(1), Math.log(3)), 0, 1);
    expect(logprob).toBeCloseTo(Math.log(0.25));
    expect(top[0]?.[0]).toBe(1);
    expect(top[0]?.[1]).toBeCloseTo(Math.log(0.75));
  });
});

describe("Tokenizer", () => {
  const files = {
    "tokenizer.json": JSON.stringify({
      model: { type: "BPE", vocab: { Ġ: 0, Ã: 1, "¼": 2, a: 3, Ġa: 4 }, merges: [["Ġ", "a"]] },
      added_tokens: [{ id: 5, content: "</s>", special: true, lstrip: false, rstrip: false }],
      pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true },
      decoder: { type: "ByteLevel" },
      normalizer: null,
      post_processor: null,
    }),
    "tokenizer_config.json": JSON.stringify({
      eos_token: "</s>",
      chat_template: "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
    }),
  };

  it("gives whole characters only", () => {
    const tokenizer = new Tokenizer(files);
    const decoder = new Detokenizer(tokenizer);
    expect([decoder.add([4]), decoder.add([1]), decoder.add([2]), decoder.add([5])]).toEqual([
      " a",
      "",
      "ü",
      "",
    ]);
    expect(tokenizer.eos).toEqual([5]);
    expect(tokenizer.encode("a a", false)).toEqual([3, 4]);
    expect(tokenizer.vocabularyKind).toBe("byte_level");
  });

  it("renders chats", () => {
    expect(new Tokenizer(files).render([{ role: "user", content: "hi" }])).toBe("hi</s>");
    const without = { ...files, "tokenizer_config.json": "{}" };
    expect(() => new Tokenizer(without).render([])).toThrow(/no chat template/);
  });

  it("refuses decoders that it cannot follow", () => {
    const other = JSON.parse(files["tokenizer.json"]);
    other.decoder = { type: "CTC" };
    expect(() => new Tokenizer({ "tokenizer.json": JSON.stringify(other) })).toThrow(/the step CTC/);
  });
});

it("refuses fields that nobody reads", () => {
  const fields = new Fields({ temperature: 3, other: 1, user: "x" });
  expect(() => fields.number("temperature", 0, 2, 1)).toThrow("'temperature' is 3; it must be 0 to 2");
  expect(() => fields.refuseOthers()).toThrow("unknown parameter: 'other'");
});
