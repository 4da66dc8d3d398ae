// The page in which the engines run: they take turns, and the result is their times.
import { loadChatModel } from "/tilewright/llm.js";

const FIELDS = {
  temperature: 0,
  ignore_eos: true,
  stream: true,
  stream_options: { include_usage: true },
};

/** Loads an engine. Its `answer(prompt, tokens)` gives the text, the times in ms at which tokens arrived, and
 * the numbers of tokens. */
const load = async (name, given) => {
  if (name === "tilewright") return loadTilewright(given);
  const { Wllama } = await import(`/${name}/esm/index.js`);
  const loader = "samplingInit" in Wllama.prototype ? loadWllama2 : loadWllama;
  return loader(Wllama, name, given);
};

async function loadTilewright({ model, target, threads }) {
  const chat = await loadChatModel(`/models/${model}/${target}/`, { threads, cache: false });
  return {
    dispose: () => chat.dispose(),
    answer: (prompt, tokens) =>
      streamed(() => chat.completions.create({ ...FIELDS, prompt, max_tokens: tokens })),
  };
}

const QUIET = { debug() {}, log() {}, warn() {}, error: console.error };
const common = ({ context, threads }) => ({ n_ctx: context, n_threads: threads, n_gpu_layers: 0, seed: 1 });
const file = async ({ model }) => (await fetch(`/models/${model}/model.gguf`)).blob();

async function loadWllama(Wllama, name, given) {
  const engine = new Wllama({ default: `/${name}/esm/wasm/wllama.wasm` }, { logger: QUIET });
  await engine.loadModel([await file(given)], { ...common(given), n_parallel: 1 });
  check(engine, given);
  return {
    dispose: () => engine.exit(),
    answer: (prompt, tokens) =>
      streamed(() => engine.createCompletion({ ...FIELDS, prompt, max_tokens: tokens, cache_prompt: false })),
  };
}

/** Version 2, the last one whose memory has 32-bit addresses. */
async function loadWllama2(Wllama, name, given) {
  const modules = ["single-thread/wllama.wasm", "multi-thread/wllama.wasm"];
  const paths = Object.fromEntries(modules.map((path) => [path, `/${name}/esm/${path}`]));
  const engine = new Wllama(paths, { logger: QUIET });
  await engine.loadModel([await file(given)], { ...common(given), n_batch: given.prompt });
  check(engine, given);
  const ends = [engine.getEOS(), engine.getBOS()];
  const sampling = { temp: 0, logit_bias: ends.map((token) => ({ token, bias: -1000 })) };
  return {
    dispose: () => engine.exit(),
    async answer(prompt, tokens) {
      const began = performance.now();
      const times = [];
      let text = "";
      const parts = await engine.createCompletion(prompt, { nPredict: tokens, sampling, stream: true });
      for await (const { currentText } of parts) {
        times.push(performance.now() - began);
        text = currentText;
      }
      const prompt_tokens = (await engine.tokenize(prompt)).length;
      return { text, times, usage: { prompt_tokens, completion_tokens: times.length } };
    },
  };
}

function check(engine, { threads }) {
  if (engine.getNumThreads() !== threads) throw new Error(`wllama runs ${engine.getNumThreads()} threads`);
}

async function streamed(start) {
  const began = performance.now();
  const times = [];
  let text = "";
  let usage;
  for await (const part of await start()) {
    usage = part.usage ?? usage;
    const [choice] = part.choices;
    if (!choice) continue;
    times.push(performance.now() - began);
    text += choice.text ?? "";
  }
  return { text, times, usage };
}

export async function run(given) {
  const { prompt, start, decoded, rounds, names } = given;
  const engines = {};
  for (const name of names) engines[name] = await load(name, given);
  let state = 12345;
  const random = () => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) / 2 ** 24;
  };
  // wllama takes texts only. A letter after a space is one token of both models' tokenizers.
  const letter = () => String.fromCharCode(97 + Math.floor(random() * 26));
  const words = (count) => Array.from({ length: count }, () => ` ${letter()}`).join("");
  const result = Object.fromEntries(names.map((name) => [name, { prefill: [], decode: [], texts: [] }]));
  for (let round = -1; round < rounds; round++) {
    const [long, short] = [words(prompt), words(start)];
    for (const name of names) {
      const found = result[name];
      const first = await engines[name].answer(long, 1);
      const { text, times, usage } = await engines[name].answer(short, decoded);
      const counts = [first.usage.prompt_tokens, usage.prompt_tokens, usage.completion_tokens];
      if (String(counts) !== String([prompt, start, decoded])) throw new Error(`${name}: ${counts} tokens`);
      if (round < 0) continue; // warm up
      // In ms: until the first token of a long prompt; of each token after the first one.
      found.prefill.push(first.times[0]);
      found.decode.push((times.at(-1) - times[0]) / (decoded - 1));
      found.texts.push(text);
    }
  }
  for (const name of names) await engines[name].dispose();
  return result;
}
