"""Steps on the preprocessed text of a unit before it is compiled, and the table of its kernels.

The text is that of `zig c++ -E`, so macros are gone and qualifiers are the attributes of `include/tw_sim`:

    __attribute__((annotate("tw_global"))) void scale(float* x)     a kernel
    extern thread_local float tile[];                               extern __shared__ float tile[];

Strings and character constants are never changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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


def find_kernels(text: str) -> dict[str, list[str]]:
    """The qualified names of the kernels that a unit defines, without those of templates, each with the
    tokens of its parameters.

    A kernel is a function with the annotation "tw_global"; a declaration without a body counts once with its
    definition.
    """
    pieces = [t for t in tokens(text) if not t.isspace() and not t.startswith("#")]
    scopes: list[str | None] = []  # for each open brace the namespace's name; None for other braces
    pending: str | None = None
    found: dict[str, list[str]] = {}
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
            place, name, parameters = _declared(pieces, place)
            if not templated and name:
                found.setdefault(_qualified(scopes, name), parameters)
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


def _declared(pieces: list[str], place: int) -> tuple[int, str, list[str]]:
    """The position behind the parameters of the function whose annotation is at `place`, its name, and the
    tokens between its parentheses.
    """
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
            end = _skip(pieces, place, "(", ")")
            return end, name, pieces[place + 1 : end - 1]
        if token in (";", "{"):
            return place, "", []
        name = token
        place += 1
    return place, "", []


def entry_table(entries: list[str], codes: Mapping[str, list[int]] | None = None) -> str:
    """The table of kernels that the runtime reads, by the expressions that name them; `codes` are those of
    `metal_codes`.
    """
    if codes is None:
        rows = "".join(f'  tw_sim_entry_of<&{entry}>("{entry}"),\n' for entry in entries)
    else:
        numbers = {entry: "".join(f", {code}" for code in codes[entry]) for entry in entries}
        rows = "".join(f'  tw_sim_metal_entry_of<&{e}{numbers[e]}>("{e}"),\n' for e in entries)
    return (
        '\n# 1 "tw_sim_entries"\n'
        'extern "C" __attribute__((visibility("hidden"))) const tw_sim_entry tw_sim_entries[];\n'
        f"const tw_sim_entry tw_sim_entries[] = {{\n{rows}  {{nullptr, nullptr, nullptr, 0}}\n}};\n"
    )


# -- Metal --

_VECTOR = re.compile(r"(bool|u?(?:char|short|int|long)|float|half)[234]")
_POSITIONS = {
    "thread_position_in_grid": -1,
    "thread_position_in_threadgroup": -2,
    "thread_index_in_threadgroup": -3,
    "threadgroup_position_in_grid": -4,
    "threads_per_threadgroup": -5,
    "dispatch_threads_per_threadgroup": -5,
    "threadgroups_per_grid": -6,
    "threads_per_grid": -7,
    "thread_index_in_simdgroup": -8,
    "simdgroup_index_in_threadgroup": -9,
    "threads_per_simdgroup": -10,
    "thread_execution_width": -10,
    "simdgroups_per_threadgroup": -11,
    "threadgroup": -12,
}
"""Numbers of the enumeration in metal.h for the attributes of parameters."""


def metal_storage(text: str) -> str:
    """The text with what a header cannot define: before a variable `threadgroup` means static storage, before
    a pointer nothing; a vector's constructor is a function.

        threadgroup float tile[16];      →  thread_local float tile[16];
        threadgroup float* p = tile;     →  float* p = tile;
        float4(x.xy, 0, 1)               →  tw_make<float4>(x.xy, 0, 1)
    """
    pieces = tokens(text)
    solid = [k for k, piece in enumerate(pieces) if not piece.isspace() and not piece.startswith("#")]
    result = list(pieces)
    for number, k in enumerate(solid):
        before = pieces[solid[number - 1]] if number else ";"
        rest = solid[number + 1 :]
        if pieces[k] == "threadgroup" and before != "[":
            declared = ""
            for other in rest:
                if pieces[other] in ("[", ";", "=", ",", "(", ")"):
                    break
                declared += pieces[other]
            is_variable = before in (";", "{", "}", ")") and not {"*", "&"} & set(declared)
            result[k] = "thread_local" if is_variable else ""
        elif _VECTOR.fullmatch(pieces[k]) and rest and pieces[rest[0]] == "(" and before != ".":
            result[k] = f"tw_make<{pieces[k]}>"
    return "".join(result)


def metal_codes(name: str, parameters: list[str]) -> list[int]:
    """The numbers that metal.h's table of kernels wants for a kernel's parameters: the position among the
    buffers, in the order of their numbers, or the negative number of what the attribute names.

    Raises:
        ValueError: A parameter has no attribute, or an unknown one.
    """
    groups: list[list[str]] = [[]]
    depth = 0
    for token in parameters:
        depth += (token in "([{<") - (token in ")]}>")
        if token == "," and depth == 0:
            groups.append([])
        else:
            groups[-1].append(token)
    attributes = []
    for group in groups if parameters else []:
        places = [k for k in range(len(group) - 1) if group[k : k + 2] == ["[", "["]]
        if not places:
            raise ValueError(
                f"kernel {name}: the parameter {' '.join(group)!r} has no attribute, such as [[buffer(0)]]"
            )
        attribute = group[places[0] + 2 :]
        if attribute[0] == "buffer":
            attributes.append(int(attribute[2]))
        elif attribute[0] in _POSITIONS:
            attributes.append(_POSITIONS[attribute[0]])
        else:
            raise ValueError(f"kernel {name}: the simulator does not know the attribute [[{attribute[0]}]]")
    buffers = sorted(a for a in attributes if a >= 0)
    return [buffers.index(a) if a >= 0 else a for a in attributes]
