/** Images that the next message shows. */

import { $, announce, element, icon, iconButton, input } from "./dom.js";

/** The longest edge of an image that is sent, in pixels. */
const LONGEST = 1536;

let attached: string[] = [];

/** The images as `data:` URLs. */
export const images = (): readonly string[] => attached;

export function setImages(urls: readonly string[]): void {
  attached = [...urls];
  $("attached").replaceChildren(
    ...attached.map((url, place) => {
      const remove = iconButton("remove", `Remove image ${place + 1}`, () => {
        setImages(attached.filter((_, other) => other !== place));
        $("text").focus();
      });
      return element("li", "", picture(url, `Image ${place + 1}`), remove);
    }),
  );
  $("attached").hidden = attached.length === 0;
}

/** An image as the page shows it. */
export function picture(url: string, text: string): HTMLImageElement {
  const image = element("img");
  image.src = url;
  image.alt = text;
  return image;
}

/** Shows the button if the model takes images. */
export function allowImages(allowed: boolean): void {
  $("attach").hidden = !allowed;
  if (!allowed) setImages([]);
}

/** A file's image, scaled down, as a `data:` URL. */
async function read(file: File): Promise<string> {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  const canvas = element("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext("2d")?.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL(file.type === "image/png" ? "image/png" : "image/jpeg", 0.9);
}

/** Reads files that the user chose or pasted. */
async function add(files: Iterable<File>): Promise<void> {
  for (const file of files)
    try {
      setImages([...attached, await read(file)]);
    } catch {
      announce(`${file.name} is no image that this browser reads`);
    }
  $("text").focus();
}

$("attach").append(icon("image"));
$("attach").onclick = () => input("image").click();
input("image").onchange = () => {
  void add([...(input("image").files ?? [])]);
  input("image").value = "";
};
$("text").addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])].filter(({ type }) => type.startsWith("image/"));
  if (!files.length || $("attach").hidden) return;
  event.preventDefault();
  void add(files);
});
