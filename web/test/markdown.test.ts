import { expect, it } from "vitest";
import { renderMarkdown } from "../page/markdown.js";

it.each([
  ["<img src=x onerror=alert(1)>", "<p>&#60;img src=x onerror=alert(1)&#62;</p>"],
  ["`<b>` & **<i>**", "<p><code>&#60;b&#62;</code> &#38; <strong>&#60;i&#62;</strong></p>"],
  ["# A <b>\ntext", "<h3>A &#60;b&#62;</h3><p>text</p>"],
  ["- a\n- b\n\n1. c\n2. d", "<ul><li>a</li><li>b</li></ul><ol><li>c</li><li>d</li></ol>"],
  [
    "x\n\n```html\n<script>\n\n*a*\n```\ny",
    '<p>x</p><pre tabindex="0"><code>&#60;script&#62;\n\n*a*\n</code></pre><p>y</p>',
  ],
  ["```\nhalf <", '<pre tabindex="0"><code>half &#60;</code></pre>'],
  ["*a* 2 * 3 * 4", "<p><em>a</em> 2 * 3 * 4</p>"],
])("renders %j without tags of the text", (text, html) => {
  expect(renderMarkdown(text)).toBe(html);
});
