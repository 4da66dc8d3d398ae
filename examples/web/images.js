// Classifies a drawing, a picture from a file, or the camera's picture.
import { load, tensor } from "./tilewright/index.js";

const SIDE = 320; // pixels of the paper
const PEN = 34; // the line's width in pixels
const PAUSE = 250; // milliseconds between two pictures of the camera

const element = (id) => document.getElementById(id);
const paper = element("paper").getContext("2d", { willReadFrequently: true });
const video = element("video");
let model, about;

/** The input of the model: the ink of a square picture, cut out and scaled to `size` x `size`, between 0
 * (paper) and 1 (ink). Null where there is no ink. Ink may be darker or brighter than the paper. */
function pixelsOf({ data, width: side }, size) {
  const grey = Float32Array.from(
    { length: side * side },
    (_, k) => 0.299 * data[4 * k] + 0.587 * data[4 * k + 1] + 0.114 * data[4 * k + 2],
  );
  const { threshold, low, high } = separated(grey);
  if (high - low < 40) return null; // one shade: an empty paper
  let border = 0; // the balance of dark and bright pixels at the edge, where the paper is
  for (let k = 0; k < side; k++)
    for (const at of [k, side * (side - 1) + k, side * k, side * k + side - 1])
      border += grey[at] > threshold ? 1 : -1;
  const [ink, background] = border > 0 ? [low, high] : [high, low];
  const share = grey.map((value) => Math.min(Math.max((value - background) / (ink - background), 0), 1));
  let [top, left, bottom, right] = [side, side, -1, -1];
  share.forEach((value, k) => {
    if (value < 0.5) return;
    const [y, x] = [Math.floor(k / side), k % side];
    [top, left] = [Math.min(top, y), Math.min(left, x)];
    [bottom, right] = [Math.max(bottom, y), Math.max(right, x)];
  });
  const extent = Math.max(bottom - top, right - left) + 1;
  const [y0, x0] = [(top + bottom + 1 - extent) / 2, (left + right + 1 - extent) / 2];
  return averages(share, side, y0, x0, extent / size, size);
}

/** The threshold that separates dark from bright pixels best (Otsu, 1979), and the means of both kinds. */
function separated(grey) {
  const counts = new Float64Array(256);
  for (const value of grey) counts[Math.round(value)]++;
  const sum = counts.reduce((total, count, shade) => total + count * shade, 0);
  let [best, found, count, part] = [-1, { threshold: 0, low: 0, high: 0 }, 0, 0];
  for (let shade = 0; shade < 255; shade++) {
    count += counts[shade];
    part += counts[shade] * shade;
    const rest = grey.length - count;
    if (!count || !rest) continue;
    const [low, high] = [part / count, (sum - part) / rest];
    const between = count * rest * (high - low) ** 2;
    if (between > best) [best, found] = [between, { threshold: shade + 0.5, low, high }];
  }
  return found;
}

/** The means of size x size cells of `step` pixels each; the first begins at (y0, x0). Pixels outside of the
 * picture are 0. */
function averages(values, side, y0, x0, step, size) {
  const samples = 6; // along each side of a cell
  const result = new Float32Array(size * size);
  for (let k = 0; k < result.length; k++)
    for (let s = 0; s < samples * samples; s++) {
      const y = Math.floor(y0 + (Math.floor(k / size) + (Math.floor(s / samples) + 0.5) / samples) * step);
      const x = Math.floor(x0 + ((k % size) + ((s % samples) + 0.5) / samples) * step);
      if (y >= 0 && x >= 0 && y < side && x < side) result[k] += values[y * side + x] / samples ** 2;
    }
  return result;
}

/** Draws the middle square of a picture onto the paper. */
function onPaper(picture, width, height) {
  const side = Math.min(width, height);
  paper.fillStyle = "#fff";
  paper.fillRect(0, 0, SIDE, SIDE);
  paper.drawImage(picture, (width - side) / 2, (height - side) / 2, side, side, 0, 0, SIDE, SIDE);
}

const classifyPaper = async () => {
  if (model) await classify(pixelsOf(paper.getImageData(0, 0, SIDE, SIDE), about.size));
};

async function classify(pixels) {
  const { size, labels } = about;
  showSeen(pixels ?? new Float32Array(size * size), size);
  if (!pixels) return showScores(null);
  const [{ data }] = Object.values(await model.run({ image: tensor(pixels, [1, 1, size, size]) }));
  showScores([...data].slice(0, labels.length));
}

function showScores(scores) {
  const best = scores ? scores.indexOf(Math.max(...scores)) : -1;
  const answer = about.labels[best] ?? "–";
  if (element("answer").textContent !== answer) element("answer").textContent = answer;
  element("scores").replaceChildren(
    ...about.labels.map((label, k) => {
      const item = document.createElement("li");
      const share = scores?.[k] ?? 0;
      const [name, bar, number] = ["span", "span", "span"].map((tag) => document.createElement(tag));
      bar.className = "bar";
      bar.style.setProperty("--share", share);
      name.textContent = label;
      number.textContent = scores ? `${Math.round(share * 100)} %` : "";
      item.append(name, bar, number);
      return item;
    }),
  );
}

function showSeen(pixels, size) {
  const canvas = element("seen");
  canvas.width = canvas.height = size;
  const shades = [...pixels].flatMap((value) => [...Array(3).fill(255 * (1 - value)), 255]);
  canvas.getContext("2d").putImageData(new ImageData(Uint8ClampedArray.from(shades), size, size), 0, 0);
}

const say = (text) => {
  element("status").textContent = text;
};

function fail(text) {
  element("error").hidden = !text;
  element("error").textContent = text;
}

const failed = (error) => fail(`The page cannot classify: ${error.message}`);

// Drawing.

let last = null; // the pointer's last place while it draws

function placeOf(event) {
  const { left, top, width } = element("paper").getBoundingClientRect();
  return [((event.clientX - left) * SIDE) / width, ((event.clientY - top) * SIDE) / width];
}

function draw(event) {
  const place = placeOf(event);
  Object.assign(paper, { lineWidth: PEN, lineCap: "round", lineJoin: "round", strokeStyle: "#111" });
  paper.beginPath();
  paper.moveTo(...last);
  paper.lineTo(...place);
  paper.stroke();
  last = place;
}

function clear() {
  stopCamera();
  fail("");
  paper.fillStyle = "#fff";
  paper.fillRect(0, 0, SIDE, SIDE);
  classifyPaper().catch(failed);
}

element("paper").addEventListener("pointerdown", (event) => {
  element("paper").setPointerCapture(event.pointerId);
  last = placeOf(event);
  draw(event);
});
element("paper").addEventListener("pointermove", (event) => {
  if (last) draw(event);
});
for (const type of ["pointerup", "pointercancel"])
  element("paper").addEventListener(type, () => {
    if (last) classifyPaper().catch(failed);
    last = null;
  });
element("clear").addEventListener("click", clear);

// A file.

element("file").addEventListener("change", async ({ target }) => {
  const [file] = target.files;
  if (!file) return;
  stopCamera();
  try {
    const picture = await createImageBitmap(file);
    fail("");
    onPaper(picture, picture.width, picture.height);
    await classifyPaper();
  } catch {
    fail(`${file.name} is not a picture that this browser can read`);
  }
  target.value = ""; // so that the same file can be chosen again
});

// The camera.

const CAMERA_ERRORS = {
  NotAllowedError: "the browser was not allowed to use the camera; allow it in the page's settings",
  NotFoundError: "no camera was found",
  NotReadableError: "another program uses the camera",
};

async function startCamera() {
  if (!navigator.mediaDevices) throw new Error("browsers allow the camera only at https and localhost");
  const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  video.srcObject = stream;
  await video.play();
  shown(true);
  while (video.srcObject === stream) {
    onPaper(video, video.videoWidth, video.videoHeight);
    await classifyPaper();
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

function stopCamera() {
  for (const track of video.srcObject?.getTracks() ?? []) track.stop();
  video.srcObject = null;
  shown(false);
}

function shown(on) {
  video.hidden = !on;
  element("paper").hidden = on;
  element("camera").ariaPressed = String(on);
  element("camera").textContent = on ? "Stop the camera" : "Camera";
}

element("camera").addEventListener("click", async () => {
  if (video.srcObject) return stopCamera();
  fail("");
  try {
    await startCamera();
  } catch (error) {
    stopCamera();
    fail(`The camera cannot be used: ${CAMERA_ERRORS[error.name] ?? error.message}`);
  }
});

element("example").addEventListener("click", async () => {
  stopCamera();
  fail("");
  const { pixels } = about.samples[Math.floor(Math.random() * about.samples.length)];
  showSeen(Float32Array.from(pixels), about.size);
  onPaper(element("seen"), about.size, about.size);
  await classify(Float32Array.from(pixels)).catch(failed);
});

async function start() {
  clear();
  const response = await fetch("model.json");
  if (!response.ok) throw new Error(`model.json: the server answered ${response.status}`);
  about = await response.json();
  model = await load(about.sources);
  element("example").disabled = !about.samples.length;
  say(`Ready, by ${model.target}`);
  await classifyPaper();
}

start().catch((error) => {
  say("");
  failed(error);
});
