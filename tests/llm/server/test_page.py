"""The chat page loads nothing from other sites, and a model's text never becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess

import pytest

from .conftest import Running


def test_page(server: Running) -> None:
    answer = server.http.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    assert not re.search(r"(src|href|url)\s*[=(]|https?:|@import", answer.text), "no external resources"
    policy = answer.headers["content-security-policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the page's script")
def test_markdown(server: Running) -> None:
    script = server.http.get("/").text
    functions = re.findall(
        r"^(?:const escapeHtml = .*?;|function render(?:Markdown|Block|Inline)\(.*?^\})$",
        script,
        re.DOTALL | re.MULTILINE,
    )
    assert len(functions) == 4
    cases = {
        "<img src=x onerror=alert(1)>": "<p>&#60;img src=x onerror=alert(1)&#62;</p>",
        "`<b>` & **<i>**": "<p><code>&#60;b&#62;</code> &#38; <strong>&#60;i&#62;</strong></p>",
        "# A <b>\ntext": "<h1>A &#60;b&#62;</h1><p>text</p>",
        "- a\n- b\n\n1. c\n2. d": "<ul><li>a</li><li>b</li></ul><ol><li>c</li><li>d</li></ol>",
        "x\n\n```html\n<script>\n\n*a*\n```\ny": "<p>x</p><pre><code>&#60;script&#62;\n\n*a*\n</code></pre><p>y</p>",  # noqa: E501
        "```\nhalf <": "<pre><code>half &#60;</code></pre>",
        "*a* 2 * 3 * 4": "<p><em>a</em> 2 * 3 * 4</p>",
    }
    program = (
        "\n".join(functions)
        + f"\nconsole.log(JSON.stringify({json.dumps(list(cases))}.map((text) => renderMarkdown(text))));"
    )
    run = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert dict(zip(cases, json.loads(run.stdout), strict=True)) == cases
