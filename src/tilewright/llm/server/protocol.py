"""The requests of OpenAI's API that the server accepts, validated by pydantic.

Unknown fields are refused, because ignoring one silently gives a wrong answer. Fields that do not change the
answer (`user`, `metadata`, ...) are accepted and not read. `top_k`, `min_p`, `repetition_penalty`,
`ignore_eos` and `chat_template_kwargs` are other servers' extensions of OpenAI's fields, under the same
names; so are vLLM's `stop_token_ids`, `min_tokens`, `structured_outputs` (before, `guided_json` and so on),
`continue_final_message` and `add_generation_prompt`, and llama.cpp's `reasoning_format`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from .errors import ApiError
from .image_parts import ImagePart, InputImage

MAX_STOP = 16
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


def _listed(value: object) -> Any:
    return [value] if isinstance(value, str) else value


Token = Annotated[int, Field(ge=0, lt=2**31)]
Stop = Annotated[
    list[Annotated[str, Field(min_length=1)]], BeforeValidator(_listed), Field(max_length=MAX_STOP)
]


class StreamOptions(Model):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # padding against eavesdropping at a provider; never added here


class Unread(Model):
    """Fields that do not change the answer."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class ModelRequest(Unread):
    """A request to a model."""

    model: str


class Sampling(ModelRequest):
    """Fields that control sampling; None: the model's default."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    ignore_eos: bool = False


class Structured(Model):
    """The form of an answer, in one of several notations."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    """A JSON schema."""
    regex: str | None = None
    choice: list[str] | None = Field(None, min_length=1, max_length=1024)
    grammar: str | None = None
    """In Lark's notation or GBNF."""


class Penalized(Sampling):
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(None, max_length=1024)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stop | None = None
    stop_token_ids: list[Token] | None = Field(None, max_length=128)
    min_tokens: int | None = Field(None, ge=0)
    structured_outputs: Structured | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = Field(None, min_length=1, max_length=1024)
    guided_grammar: str | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    use_beam_search: bool | None = None
    length_penalty: float | None = Field(None, ge=-100, le=100)
    early_stopping: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class TextPart(Model):
    type: Literal["text"]
    text: str


class FunctionCall(Model):
    name: str
    arguments: str


class ToolCall(Model):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # clients that collect a stream send it back


class Message(Model):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Annotated[TextPart | ImagePart, Discriminator("type")]] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    @property
    def text(self) -> str | None:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content if isinstance(part, TextPart))
        return self.content


FunctionName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]
"""OpenAI's names have at most 64 characters, Anthropic's 128."""


def _parameters(schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict | None):
        raise PydanticCustomError("invalid_schema", "'properties' should be an object")
    if not isinstance(required, list | None) or not all(isinstance(name, str) for name in required or ()):
        raise PydanticCustomError("invalid_schema", "'required' should be a list of strings")
    return schema


Parameters = Annotated[dict[str, Any], AfterValidator(_parameters)]
"""The JSON schema of a function's arguments, as far as it is read here."""


class Function(Model):
    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(Model):
    type: Literal["function"]
    function: Function


class NamedFunction(Model):
    name: str


class NamedTool(Model):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Model):
    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextFormat(Model):
    type: Literal["text"]


class ObjectFormat(Model):
    type: Literal["json_object"]


class SchemaFormat(Model):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class ChatRequest(Penalized):
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: (
        Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")] | None
    ) = None
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    store: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    max_reasoning_tokens: int | None = Field(None, ge=0)
    """Most tokens of reasoning, after which its end is written for the model."""
    reasoning_format: Literal["auto", "deepseek", "none"] = "auto"
    """Whether the model's reasoning is parted from the answer; "none" leaves it in the answer's text."""

    @property
    def longest(self) -> int | None:
        """The most tokens of the answer, by the new name of the field or the old one.

        Raises:
            ApiError: 400: both are given and differ.
        """
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            message = (
                f"'max_tokens' is {old} and 'max_completion_tokens' is {new}; they mean the same: send one "
                "of them"
            )
            raise ApiError(400, message, param="max_tokens", code="invalid_value")
        return old if new is None else new


class CompletionRequest(Penalized):
    prompt: str | list[str] | list[Token] | list[list[Token]]
    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)
    suffix: str | None = None


Cut = Annotated[int, Field(ge=-1)]
"""The number of tokens to which a text is cut; -1: the most that the model takes."""


class EmbeddingRequest(ModelRequest):
    input: str | list[str] | list[Token] | list[list[Token]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    prompt_name: str | None = None
    """The name of a prompt of the model, which precedes the texts."""
    truncate_prompt_tokens: Cut | None = None


class InputText(Model):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputMessage(Model):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Annotated[InputText | InputImage, Discriminator("type")]]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class InputCall(Model):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: None = None


class InputCallOutput(Model):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]
    id: str | None = None
    status: str | None = None


class ReasoningText(Model):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class InputReasoning(Model):
    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ReasoningText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: None = None
    status: str | None = None


class ResponseTool(Model):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class ResponseNamedTool(Model):
    type: Literal["function"]
    name: str


class ResponseSchemaFormat(JsonSchema):
    type: Literal["json_schema"]


class TextOptions(Model):
    format: (
        Annotated[TextFormat | ObjectFormat | ResponseSchemaFormat, Field(discriminator="type")] | None
    ) = None


class ResponseStreamOptions(Model):
    include_obfuscation: bool | None = None


def _item_type(value: object) -> str:
    return (
        str(value.get("type", "message"))
        if isinstance(value, dict)
        else str(getattr(value, "type", "message"))
    )


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputCallOutput, Tag("function_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")],
    Discriminator(_item_type),
]


class ResponsesRequest(Sampling):
    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    text: TextOptions | None = None
    tools: list[ResponseTool] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ResponseNamedTool | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    include: list[str] | None = Field(None, max_length=0)


RequestT = TypeVar("RequestT", bound=Model)


def parse(kind: type[RequestT], body: bytes) -> RequestT:
    """Parse and validate a request.

    Raises:
        ApiError: 400: the message names the field at fault.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = _deepest(error)
        kind, value = first["type"], first.get("input")
        if kind == "json_invalid":
            raise ApiError(
                400, f"the body is not valid JSON: {first['ctx']['error']}", code="invalid_json"
            ) from None
        where = _path(first["loc"], named=kind in ("extra_forbidden", "missing", "none_required"))
        if kind == "extra_forbidden":
            message, code = f"unknown parameter: '{where}'", "unknown_parameter"
            if instead := _INSTEAD.get(where):
                message += f"; {instead}"
        elif kind == "missing":
            message, code = f"'{where}': {first['msg']}", "missing_required_parameter"
        else:
            message, code = first["msg"], "invalid_value"
            if kind == "union_tag_invalid":
                where, value = f"{where}.type", first["ctx"]["tag"]
                message = f"Input should be {first['ctx']['expected_tags']}"
            if kind in ("literal_error", "union_tag_invalid") and isinstance(value, str):
                message += f", not {value[:64]!r}"
                if (form := value.removeprefix("input_").partition("_")[0]) in _NOT_TEXT:
                    message += f": {form} is not supported here"
            message = f"'{where}': {message}" if where else message
        raise ApiError(400, message, param=where or None, code=code) from None


_INSTEAD = {
    "function_call": "it is deprecated: send 'tool_choice'",
    "functions": "it is deprecated: send 'tools'",
    "max_tokens": "this endpoint calls it 'max_output_tokens'",
    "max_output_tokens": "it belongs to /v1/responses; this endpoint calls it 'max_completion_tokens'",
    "max_completion_tokens": "it belongs to /v1/chat/completions; this endpoint calls it 'max_tokens' or "
    "'max_output_tokens'",
}
"""Replacements for fields that OpenAI's API has, or had, elsewhere."""
_NOT_TEXT = {"image", "audio", "file", "video"}


def _deepest(error: ValidationError) -> Any:
    """Return the error of the union's alternative that matched furthest; else the first one."""
    return max(error.errors(include_url=False), key=lambda e: len(_path(e["loc"]).split(".")))


def _path(location: tuple[int | str, ...], named: bool = False) -> str:
    """Return a field's path, as ``messages.0.content``, without pydantic's type names for alternatives.

    If `named`, the last part is a field's name in any case.
    """
    path: list[str] = []
    for place, part in enumerate(map(str, location)):
        field = place == 0 or named and place == len(location) - 1
        kind = part in _ALTERNATIVES or path[-1:] == [part] or not part.replace("-", "_").isidentifier()
        if field or part.isdigit() or not kind:
            path.append(part)
    return ".".join(path)


_ALTERNATIVES = {
    "str",
    "NamedTool",
    "ResponseNamedTool",
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
    "input_text",
    "output_text",
    "input_image",
}
