"""Steps on the preprocessed text of a unit before it is compiled, and the table of its kernels.

The text is that of `zig c++ -E`, so macros are gone and qualifiers are the attributes of `include/tw_sim`:

    __attribute__((annotate("tw_global"))) void scale(float* x)     a kernel
    extern thread_local float tile[];                               extern __shared__ float tile[];

Strings and character constants are never changed.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<line>^\#[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<word>[A-Za-z_]\w*)|(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)|(?P<other>::|->|\S)""",
    re.MULTILINE,
)
_DYNAMIC = "tw_sim_dynamic_shared"
_KERNEL = ("annotate", '"tw_global"')


def tokens(text: str) -> list[str]:
    """The tokens of a text, white space and directives included; their concatenation is the text."""
    return [match.group() for match in _TOKEN.finditer(text)]


def own_part(text: str, name: str) -> int:
    """The position in preprocessed `text` behind the headers that the simulator includes before the unit: the
    first line marker of the file `name` itself.
    """
    match = re.search(rf'^# 1 "{re.escape(name)}"', text, re.MULTILINE)
    return match.start() if match else 0


def bind_dynamic_shared(text: str) -> str:
    """Let every ``extern __shared__`` array be the buffer of dynamic shared memory.

    `extern thread_local float tile[];` → ``extern __thread float tile[] __asm__("tw_sim_dynamic_shared");``.
    The last part names the symbol; ``__thread`` is for variables that nothing has to initialize.
    """
    pieces = tokens(text)
    result: list[str] = []
    place = 0
    while place < len(pieces):
        if pieces[place] != "extern":
            result.append(pieces[place])
            place += 1
            continue
        end = place
        while end < len(pieces) and pieces[end] not in (";", "{"):
            end += 1
        statement = pieces[place:end]
        is_shared = "thread_local" in statement and pieces[end : end + 1] == [";"]
        if is_shared and "]" in statement:
            statement = ["__thread" if piece == "thread_local" else piece for piece in statement]
            statement.append(f' __asm__("{_DYNAMIC}")')
        result += statement
        place = end
    return "".join(result)


def find_kernels(text: str) -> list[str]:
    """The qualified names of the kernels that a unit defines, without those of templates.

    A kernel is a function with the annotation "tw_global"; a declaration without a body counts once with its
    definition.
    """
    pieces = [t for t in tokens(text) if not t.isspace() and not t.startswith("#")]
    scopes: list[str | None] = []  # for each open brace the namespace's name; None for other braces
    pending: str | None = None
    found: list[str] = []
    templated = False
    place = 0
    while place < len(pieces):
        token = pieces[place]
        if token == "namespace":
            name = pieces[place + 1]
            pending = name if name != "{" else ""
        elif token == "template" and pieces[place + 1 : place + 2] == ["<"]:
            place = _skip(pieces, place + 1, "<", ">")
            templated = True
            continue
        elif token == "{":
            scopes.append(pending)
            pending = None
            templated = False
        elif token == "}":
            if scopes:
                scopes.pop()
            templated = False
        elif token == ";":
            pending = None
            templated = False
        elif token == _KERNEL[0] and tuple(pieces[place + 2 : place + 3]) == _KERNEL[1:]:
            place, name = _declared(pieces, place)
            if not templated and name and (full := _qualified(scopes, name)) not in found:
                found.append(full)
            continue
        place += 1
    return found


def _qualified(scopes: list[str | None], name: str) -> str:
    return "::".join([*(scope for scope in scopes if scope), name])


def _skip(pieces: list[str], place: int, opening: str, closing: str) -> int:
    """The position behind the bracket that closes the one at `place`."""
    depth = 0
    while place < len(pieces):
        depth += (pieces[place] == opening) - (pieces[place] == closing)
        place += 1
        if depth == 0:
            break
    return place


def _declared(pieces: list[str], place: int) -> tuple[int, str]:
    """The name of the function whose annotation is at `place`, and the position behind its parameters."""
    while pieces[place] != ")":  # the end of annotate(...)
        place += 1
    place += 3  # and of __attribute__((...))
    name = ""
    while place < len(pieces):
        token = pieces[place]
        if token in ("__attribute__", "alignas", "__declspec", "decltype"):
            place = _skip(pieces, place + 1, "(", ")")
            continue
        if token == "[" and pieces[place + 1 : place + 2] == ["["]:
            place = _skip(pieces, place, "[", "]")
            continue
        if token == "(":
            return _skip(pieces, place, "(", ")"), name
        if token in (";", "{"):
            return place, ""
        name = token
        place += 1
    return place, ""


def entry_table(entries: list[str]) -> str:
    """The table of kernels that the runtime reads, by the expressions that name them."""
    rows = "".join(f'  tw_sim_entry_of<&{entry}>("{entry}"),\n' for entry in entries)
    return (
        '\n# 1 "tw_sim_entries"\n'
        'extern "C" __attribute__((visibility("hidden"))) const tw_sim_entry tw_sim_entries[];\n'
        f"const tw_sim_entry tw_sim_entries[] = {{\n{rows}  {{nullptr, nullptr, nullptr, 0}}\n}};\n"
    )
