// Embeds sentences and a query with all-MiniLM-L6-v2, and lists the sentences nearest to the query.
import { load, tensor } from "./tilewright/index.js";
import { Tokenizer } from "./tokenizers.js";

const BATCH = 16; // sentences of one run: more are faster, and fewer let the page answer a query sooner
const MOST_TOKENS = 256; // of a sentence; the rest is cut
const SHOWN = 5;
const SUGGESTIONS = ["growing tomatoes", "saving money", "outer space", "a computer without network"];

const element = (id) => document.getElementById(id);
let model, tokenizer;
let corpus = []; // { sentence, vector }
let latest = 0; // the number of the latest query

const fetched = async (file) => {
  const response = await fetch(file);
  if (!response.ok) throw new Error(`${file}: the server answered ${response.status}`);
  return response.json();
};

/** Unit vectors of sentences. The product of two is 1 for one meaning, and about 0 for unrelated ones. */
async function embed(sentences) {
  const encoded = sentences.map((sentence) => {
    const { ids } = tokenizer.encode(sentence);
    return ids.length > MOST_TOKENS ? [...ids.slice(0, MOST_TOKENS - 1), ids.at(-1)] : ids;
  });
  const width = Math.max(...encoded.map((ids) => ids.length));
  const ids = new BigInt64Array(encoded.length * width);
  const mask = new BigInt64Array(ids.length); // 1 for a token, 0 for padding
  encoded.forEach((tokens, row) => {
    ids.set(tokens.map(BigInt), row * width);
    mask.fill(1n, row * width, row * width + tokens.length);
  });
  const shape = [encoded.length, width];
  const inputs = { input_ids: tensor(ids, shape), attention_mask: tensor(mask, shape) };
  const {
    data,
    shape: [, size],
  } = Object.values(await model.run(inputs))[0];
  return encoded.map((_, row) => data.subarray(row * size, (row + 1) * size));
}

async function embedAll(sentences) {
  const start = performance.now();
  const made = [];
  for (let at = 0; at < sentences.length; at += BATCH) {
    say(`Reading sentences: ${at} of ${sentences.length}`);
    const part = sentences.slice(at, at + BATCH);
    for (const [k, vector] of (await embed(part)).entries()) made.push({ sentence: part[k], vector });
  }
  corpus = made;
  const seconds = ((performance.now() - start) / 1e3).toFixed(1);
  const threads = model.threads > 1 ? ` on ${model.threads} threads` : "";
  say(`Ready: ${corpus.length} sentences, read in ${seconds} s by ${model.target}${threads}`);
}

async function search() {
  const query = element("query").value.trim();
  const mine = ++latest;
  const found = query && corpus.length ? await nearest(query) : [];
  if (mine === latest) show(found); // a later query may be answered already
}

async function nearest(query) {
  const [wanted] = await embed([query]);
  const product = (vector) => vector.reduce((sum, x, k) => sum + x * wanted[k], 0);
  return corpus
    .map(({ sentence, vector }) => ({ sentence, likeness: product(vector) }))
    .sort((a, b) => b.likeness - a.likeness)
    .slice(0, SHOWN);
}

function show(found) {
  element("results").replaceChildren(
    ...found.map(({ sentence, likeness }) => {
      const item = document.createElement("li");
      const bar = document.createElement("span");
      item.className = "found";
      bar.className = "bar";
      bar.style.setProperty("--share", Math.max(likeness, 0));
      bar.role = "img";
      bar.ariaLabel = `likeness ${Math.round(Math.max(likeness, 0) * 100)} %`;
      item.append(sentence, bar);
      return item;
    }),
  );
}

const say = (text) => {
  element("status").textContent = text;
};

function fail(error) {
  element("loading").hidden = true;
  say("");
  element("error").hidden = false;
  element("error").textContent = `The page cannot search: ${error.message}`;
}

/** Shows how much of the model has arrived. */
function progress({ loaded, total, cached }) {
  const bar = document.querySelector("progress");
  bar.max = total;
  bar.value = loaded;
  const megabytes = (bytes) => Math.round(bytes / 1e6);
  say(`${cached ? "Reading" : "Loading"} the model: ${megabytes(loaded)} of ${megabytes(total)} MB`);
}

async function start() {
  const { sources, sentences } = await fetched("model.json");
  element("sentences").value = sentences.join("\n");
  tokenizer = new Tokenizer(await fetched("tokenizer.json"), await fetched("tokenizer_config.json"));
  model = await load(sources, { onProgress: progress });
  element("loading").hidden = true;
  await embedAll(sentences);
  element("query").disabled = element("use").disabled = false;
  element("query").focus({ preventScroll: true });
  await search();
}

let timer;
element("query").addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => search().catch(fail), 150);
});
document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  search().catch(fail);
});
element("use").addEventListener("click", async () => {
  const sentences = element("sentences")
    .value.split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  if (!sentences.length) return say("Write at least one sentence first");
  element("use").disabled = true;
  await embedAll(sentences).then(search).catch(fail);
  element("use").disabled = false;
});
for (const text of SUGGESTIONS) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  button.addEventListener("click", () => {
    element("query").value = text;
    search().catch(fail);
  });
  element("suggestions").append(button);
}
start().catch(fail);
