/** A subset of Markdown as HTML. All text is escaped, so a reply of a model cannot add tags. */

const escapeHtml = (text: string): string =>
  text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

/** Renders code, paragraphs, headings, lists, strong and emphasized text. */
export function renderMarkdown(text: string): string {
  return text
    .split(/^(```[^\n]*\n[\s\S]*?(?:^```[ \t]*$|(?![\s\S])))/m)
    .map((part, index) => {
      if (index % 2) {
        const code = part.replace(/^```[^\n]*\n/, "").replace(/^```[ \t]*$/m, "");
        return `<pre tabindex="0"><code>${escapeHtml(code)}</code></pre>`;
      }
      return part
        .split(/\n{2,}/)
        .filter((paragraph) => paragraph.trim())
        .map(renderBlock)
        .join("");
    })
    .join("");
}

/** Renders a heading with the text after it, a list, or a paragraph. The page's own headings have the levels
 * 1 and 2, so those of a reply begin at 3. */
function renderBlock(text: string): string {
  const lines = text.replace(/^\n+|\n+$/g, "").split("\n");
  const [first = ""] = lines;
  const heading = /^(#{1,6})\s+(.*)$/.exec(first);
  if (heading) {
    const rest = lines.slice(1).join("\n");
    const level = Math.min(6, (heading[1] as string).length + 2);
    const below = rest.trim() ? renderBlock(rest) : "";
    return `<h${level}>${renderInline(heading[2] as string)}</h${level}>${below}`;
  }
  const lists: [string, RegExp][] = [
    ["ul", /^\s*[-*+]\s+/],
    ["ol", /^\s*\d+[.)]\s+/],
  ];
  for (const [tag, mark] of lists)
    if (mark.test(first) && lines.every((line) => mark.test(line) || /^\s{2,}\S/.test(line))) {
      const items: string[] = [];
      for (const line of lines)
        if (mark.test(line)) items.push(line.replace(mark, ""));
        else items.push(`${items.pop()}\n${line.trim()}`);
      return `<${tag}>${items.map((item) => `<li>${renderInline(item)}</li>`).join("")}</${tag}>`;
    }
  return `<p>${renderInline(lines.join("\n"))}</p>`;
}

/** Renders inline code, strong and emphasized text, and line breaks. */
function renderInline(text: string): string {
  return text
    .split(/(`[^`\n]+`)/)
    .map((part, index) =>
      index % 2
        ? `<code>${escapeHtml(part.slice(1, -1))}</code>`
        : escapeHtml(part)
            .replace(/\*\*([^*\n]+)\*\*/g, "<strong>$1</strong>")
            .replace(/\*([^*\s][^*\n]*)\*/g, "<em>$1</em>")
            .replace(/\n/g, "<br>"),
    )
    .join("");
}
