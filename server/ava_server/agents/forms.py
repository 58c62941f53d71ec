"""What the body of a request may have on each wire, at every depth: one table, `FORMS`.

An agent's releases add fields faster than they are read here. So an unknown field is taken out and named, and the call
goes on; an unknown kind of content, item or tool may be what the call is about, and is refused. What changes a price,
what the provider runs itself, and what Ava cannot see (a file's id, an address, an earlier answer's id) is not in the
table. Images and documents become a sentence: how many tokens they are does not follow from their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ava_server.agents.seam import CallRefused
from ava_server.models.json_text import as_list, as_object, objects_in


class Leaf(Enum):
    """A field without fields of its own.

    `PLAIN` is a text, a number, true or false. `FREE` is what an agent chooses the form of: a schema, arguments.
    `MARK` is a cache mark, which is made anew. `EMPTY` is a list in which nothing may be.
    """

    PLAIN = "plain"
    FREE = "free"
    MARK = "mark"
    EMPTY = "empty"


PLAIN, FREE, MARK, EMPTY = Leaf.PLAIN, Leaf.FREE, Leaf.MARK, Leaf.EMPTY


@dataclass(frozen=True)
class Words:
    """A text that is one of these; another one is taken out."""

    known: frozenset[str]


@dataclass(frozen=True)
class Fields:
    """An object with these fields. Anything else in its place is taken out, or else refused."""

    known: Mapping[str, Shape]
    refuses: bool = False


@dataclass(frozen=True)
class Listed:
    """A list; what could be in it alone becomes one. `text`: an object that a text alone is the `content` of."""

    of: Shape
    text: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Kinds:
    """An object by its `type`; `default` is that of one without. An unknown type is refused, or else taken out."""

    known: Mapping[str, Fields]
    default: str = ""
    refuses: bool = True


@dataclass(frozen=True)
class Content:
    """A text, or a list of texts and of parts of these kinds; a part alone becomes one. Media become a sentence."""

    parts: Kinds


@dataclass(frozen=True)
class FormChoice:
    """A word or an object; another one is taken out."""

    words: Words
    objects: Kinds


@dataclass(frozen=True)
class GooglePart:
    """Google's piece of content, whose kind is the field that it has; another is refused. Media become a sentence."""

    known: Mapping[str, Shape]


Shape = Leaf | Words | Fields | Listed | Kinds | Content | FormChoice | GooglePart


@dataclass(frozen=True)
class BodyForm:
    """What a wire's bodies may have.

    `fields` are those that pass; of these, `head` are those before the conversation, and `items` is the conversation.
    `output` are the names of the limit on an answer, the first one where the agent gives none. `refused` fields end the
    call. `tools` are the kinds of tools that the agent itself runs; those of the provider's (`taken_tools`) are taken
    out. `tools_under`: tools are objects by the field that they have, and those that the agent runs are a list in this
    one. `output_under` is the field that has the limit, `one_answer` the name of the number of answers. `snake`: names
    may also be in snake case. `in_address` are fields that go into the address instead.
    """

    items: str
    head: tuple[str, ...]
    fields: Mapping[str, Shape]
    output: tuple[str, ...]
    tools: Kinds
    taken_tools: frozenset[str]
    part: str
    """The type of a part that is text."""
    refused: frozenset[str] = frozenset()
    forced: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools_under: str = ""
    output_under: str = ""
    one_answer: str = "n"
    snake: bool = False
    in_address: frozenset[str] = frozenset()

    def name(self, given: str, known: Collection[str]) -> str:
        """Return a field's name as the form has it."""
        if given in known or not self.snake:
            return given
        first, *others = given.split("_")
        camel = first + "".join(word[:1].upper() + word[1:] for word in others)
        return camel if camel in known else given


def _words(text: str) -> Words:
    return Words(frozenset(text.split()))


def _plain(names: str, **more: Shape) -> Fields:
    return Fields({**dict.fromkeys(names.split(), PLAIN), **more})


def _item(names: str, **more: Shape) -> Fields:
    """Return the fields of what a call is about."""
    return Fields(_plain(names, **more).known, refuses=True)


_EFFORTS = _words("none minimal low medium high xhigh max")

# -- Anthropic Messages -----------------------------------------------------------------------------------------------

_TEXT_PART = _plain("type text", cache_control=MARK, citations=EMPTY)
_MODEL, _TRIGGER = _plain("model"), _plain("type category explanation")
_SEARCH_RESULT = _plain(
    "type source title",
    content=Content(Kinds({"text": _TEXT_PART})),
    citations=_plain("enabled"),
    cache_control=MARK,
)
_MESSAGE_TEXTS = Content(Kinds({"text": _TEXT_PART, "search_result": _SEARCH_RESULT}))
_MESSAGE_PARTS = Content(
    Kinds(
        {
            "text": _TEXT_PART,
            "search_result": _SEARCH_RESULT,
            "tool_use": _plain(
                "type id name",
                input=FREE,
                cache_control=MARK,
                caller=Kinds({"direct": _plain("type")}),
            ),
            "tool_result": _plain(
                "type tool_use_id is_error",
                content=_MESSAGE_TEXTS,
                cache_control=MARK,
            ),
            "thinking": _plain("type thinking signature"),
            "redacted_thinking": _plain("type data"),
            "compaction": _plain("type content encrypted_content", cache_control=MARK),
            # Where one model's part of an answer ends and another's begins; the API wants it back as it was.
            "fallback": Fields({"type": PLAIN, "from": _MODEL, "to": _MODEL, "trigger": _TRIGGER}),
        }
    )
)
_MESSAGE_TOOL = _plain(
    "type name description strict eager_input_streaming",
    input_schema=FREE,
    cache_control=MARK,
)
_MESSAGES = BodyForm(
    items="messages",
    head=("system", "tools"),
    fields={
        "system": Content(Kinds({"text": _TEXT_PART})),
        "messages": Listed(_item("role", content=_MESSAGE_PARTS)),
        "tool_choice": Kinds(
            {
                "auto": _plain("type disable_parallel_tool_use"),
                "any": _plain("type disable_parallel_tool_use"),
                "tool": _plain("type name disable_parallel_tool_use"),
                "none": _plain("type"),
            },
            refuses=False,
        ),
        "stream": PLAIN,
        "temperature": PLAIN,
        "top_p": PLAIN,
        "top_k": PLAIN,
        "stop_sequences": Listed(PLAIN),
        "thinking": Kinds(
            {
                "enabled": _plain("type budget_tokens", display=_words("summarized omitted")),
                "adaptive": _plain("type", display=_words("summarized omitted")),
                "disabled": _plain("type"),
            },
            refuses=False,
        ),
        "output_config": Fields(
            {
                "effort": _EFFORTS,
                "format": Kinds({"json_schema": _plain("type name", schema=FREE)}, refuses=False),
            }
        ),
    },
    output=("max_tokens",),
    tools=Kinds({"": _MESSAGE_TOOL, "custom": _MESSAGE_TOOL}),
    taken_tools=_words(
        "web_search web_fetch code_execution computer bash text_editor memory mcp_toolset advisor"
        " tool_search_tool_regex tool_search_tool_bm25"
    ).known,
    part="text",
    refused=frozenset(("mcp_servers", "container")),
)

# -- OpenAI Responses -------------------------------------------------------------------------------------------------

_INPUT_TEXT = _plain("type text")
_REASONING_TEXTS = Listed(Kinds({"summary_text": _INPUT_TEXT, "reasoning_text": _INPUT_TEXT, "text": _INPUT_TEXT}))
_ITEM_PARTS = Content(
    Kinds(
        {
            "text": _INPUT_TEXT,
            "input_text": _INPUT_TEXT,
            "output_text": _plain("type text", annotations=EMPTY, logprobs=EMPTY),
            "summary_text": _INPUT_TEXT,
            "reasoning_text": _INPUT_TEXT,
            "refusal": _plain("type refusal"),
        }
    )
)
_ITEMS = Kinds(
    {
        "message": _plain("type id role status phase", content=_ITEM_PARTS),
        "function_call": _plain("type id call_id name namespace status", arguments=FREE),
        "function_call_output": _plain("type id call_id status", output=_ITEM_PARTS),
        "custom_tool_call": _plain("type id call_id name namespace status", input=FREE),
        "custom_tool_call_output": _plain("type id call_id status", output=_ITEM_PARTS),
        "reasoning": _plain(
            "type id status encrypted_content",
            summary=_REASONING_TEXTS,
            content=_REASONING_TEXTS,
        ),
        "compaction": _plain("type id encrypted_content"),
        "additional_tools": _plain("type id role", tools=FREE),  # read as those outside
    },
)
_FUNCTION = _plain("type name description strict", parameters=FREE)
_ALLOWED_TOOL = Kinds({"function": _plain("type name"), "custom": _plain("type name")}, refuses=False)
_RESPONSES = BodyForm(
    items="input",
    head=("instructions", "tools", "text"),
    fields={
        "instructions": Content(Kinds({})),
        "input": Listed(_ITEMS, text={"type": "message", "role": "user"}),
        "text": Fields(
            {
                "verbosity": _words("low medium high"),
                "format": Kinds(
                    {
                        "text": _plain("type"),
                        "json_object": _plain("type"),
                        "json_schema": _plain("type name description strict", schema=FREE),
                    },
                    refuses=False,
                ),
            }
        ),
        "tool_choice": FormChoice(
            _words("auto none required"),
            Kinds(
                {
                    "function": _plain("type name"),
                    "custom": _plain("type name"),
                    "allowed_tools": _plain("type", mode=_words("auto required"), tools=Listed(_ALLOWED_TOOL)),
                },
                refuses=False,
            ),
        ),
        "parallel_tool_calls": PLAIN,
        "reasoning": Fields({"effort": _EFFORTS, "summary": _words("auto concise detailed none")}),
        "include": Listed(_words("reasoning.encrypted_content")),
        "stream": PLAIN,
        "temperature": PLAIN,
        "top_p": PLAIN,
        "prompt_cache_key": PLAIN,
        "truncation": _words("auto disabled"),
    },
    output=("max_output_tokens",),
    tools=Kinds(
        {
            "function": _FUNCTION,
            "custom": _plain(
                "type name description",
                format=Kinds({"text": _plain("type"), "grammar": _plain("type syntax definition")}, refuses=False),
            ),
            "namespace": _plain("type name description", tools=FREE),  # those inside are read as those outside
        }
    ),
    taken_tools=_words(
        "web_search web_search_preview file_search computer computer_use computer_use_preview code_interpreter mcp"
        " shell local_shell apply_patch image_generation tool_search programmatic_tool_calling"
    ).known,
    part="input_text",
    refused=frozenset(("previous_response_id", "conversation", "prompt", "background")),
    forced={"store": False},
)

# -- OpenAI chat completions ------------------------------------------------------------------------------------------

_CHAT_TEXT = _plain("type text", cache_control=MARK)
_CHAT_PARTS = Content(
    Kinds(
        {
            "text": _CHAT_TEXT,
            "refusal": _plain("type refusal"),
            "thinking": _plain("type signature closed", thinking=Content(Kinds({"text": _CHAT_TEXT}))),
        }
    )
)
_THOUGHT_SIGNATURE = Fields({"google": _plain("thought_signature")})
_CHAT_CALL = _plain(
    "type id index thought_signature",
    function=_plain("name thought_signature", arguments=FREE),
    extra_content=_THOUGHT_SIGNATURE,
)
_CHAT_CHOICE = Kinds({"function": _plain("type", function=_plain("name"))}, refuses=False)
_CHAT_ALLOWED = _plain("", mode=_words("auto required"), tools=Listed(_CHAT_CHOICE))
_REASONING_DETAIL = _plain("type id index format text summary data signature")
_CHAT = BodyForm(
    items="messages",
    head=("tools", "response_format"),
    fields={
        "messages": Listed(
            _item(
                "role name tool_call_id refusal reasoning reasoning_content thought_signature",
                content=_CHAT_PARTS,
                tool_calls=Listed(Kinds({"function": _CHAT_CALL}, default="function")),
                function_call=_plain("name", arguments=FREE),
                reasoning_details=Listed(
                    Kinds(
                        {
                            "reasoning.text": _REASONING_DETAIL,
                            "reasoning.summary": _REASONING_DETAIL,
                            "reasoning.encrypted": _REASONING_DETAIL,
                        }
                    )
                ),
                extra_content=_THOUGHT_SIGNATURE,
                cache_control=MARK,
            )
        ),
        "response_format": Kinds(
            {
                "text": _plain("type"),
                "json_object": _plain("type"),
                "json_schema": _plain("type", json_schema=_plain("name description strict", schema=FREE)),
            },
            refuses=False,
        ),
        "tool_choice": FormChoice(
            _words("auto none required any"),
            Kinds(
                {
                    "function": _plain("type", function=_plain("name")),
                    "allowed_tools": _plain(
                        "type", allowed_tools=_plain("", mode=_words("auto required"), tools=Listed(_CHAT_CHOICE))
                    ),
                },
                refuses=False,
            ),
        ),
        "parallel_tool_calls": PLAIN,
        "reasoning_effort": _EFFORTS,
        "reasoning": _plain("max_tokens exclude enabled", effort=_EFFORTS),
        "stream": PLAIN,
        "stop": Listed(PLAIN),
        "seed": PLAIN,
        "temperature": PLAIN,
        "top_p": PLAIN,
        "top_k": PLAIN,
        "presence_penalty": PLAIN,
        "frequency_penalty": PLAIN,
    },
    output=("max_tokens", "max_completion_tokens"),
    tools=Kinds(
        {
            "function": _plain(
                "type",
                function=_plain("name description strict", parameters=FREE),
                cache_control=MARK,
            )
        }
    ),
    taken_tools=_words(
        "custom web_search web_search_preview code_interpreter code_execution browser_search file_search retrieval mcp"
        " x_search live_search openrouter:web_search openrouter:datetime openrouter:web_fetch"
    ).known,
    part="text",
    refused=frozenset(("functions", "web_search_options", "plugins")),
)

# -- Google's generateContent -----------------------------------------------------------------------------------------

_GOOGLE_PART = GooglePart(
    {
        "text": PLAIN,
        "thought": PLAIN,
        "thoughtSignature": PLAIN,
        "functionCall": _plain("id name", args=FREE),
        "functionResponse": _plain("id name", response=FREE, parts=Listed(GooglePart({}))),
    }
)
_GOOGLE_CONTENT = _item("role", parts=Listed(_GOOGLE_PART))
_GOOGLE = BodyForm(
    items="contents",
    head=("systemInstruction", "tools"),
    fields={
        "stream": PLAIN,
        "systemInstruction": _GOOGLE_CONTENT,
        "contents": Listed(_GOOGLE_CONTENT),
        "toolConfig": Fields(
            {
                "functionCallingConfig": Fields(
                    {"mode": _words("AUTO ANY NONE VALIDATED"), "allowedFunctionNames": Listed(PLAIN)}
                )
            }
        ),
        "safetySettings": Listed(_plain("category threshold method")),
        "generationConfig": _plain(
            "maxOutputTokens temperature topP topK seed presencePenalty frequencyPenalty candidateCount",
            stopSequences=Listed(PLAIN),
            responseMimeType=_words("text/plain application/json text/x.enum"),
            responseSchema=FREE,
            responseJsonSchema=FREE,
            responseModalities=Listed(_words("TEXT")),
            thinkingConfig=_plain(
                "includeThoughts thinkingBudget",
                thinkingLevel=_words("MINIMAL LOW MEDIUM HIGH minimal low medium high"),
            ),
        ),
    },
    output=("maxOutputTokens",),
    tools=Kinds(
        {
            "": _plain(
                "name description", parameters=FREE, parametersJsonSchema=FREE, response=FREE, responseJsonSchema=FREE
            )
        }
    ),
    taken_tools=_words(
        "googleSearch googleSearchRetrieval enterpriseWebSearch parallelAiSearch googleMaps urlContext codeExecution"
        " fileSearch retrieval computerUse mcpServers"
    ).known,
    part="",
    refused=frozenset(("cachedContent",)),
    tools_under="functionDeclarations",
    output_under="generationConfig",
    one_answer="candidateCount",
    snake=True,
    in_address=frozenset(("model", "stream")),
)

FORMS: Mapping[str, BodyForm] = {
    "messages": _MESSAGES,
    "responses": _RESPONSES,
    "chat_completions": _CHAT,
    "google": _GOOGLE,
}

# -- reading by the table ---------------------------------------------------------------------------------------------

MEDIA = frozenset(("image", "document", "input_image", "input_file", "image_url", "file", "input_audio", "audio"))
"""Types of parts whose tokens do not follow from their bytes, wherever they stand."""
_GOOGLE_MEDIA = frozenset(("inlineData", "fileData"))
"""The same by the field that a part has."""
_REFERENCES = frozenset(("file_id", "file_url", "file_data", "image_url", "video_url", "input_audio", "audio")).union(
    ("source", "server_url", "container_id")
)
"""Fields that stand for something else: content of which they are a part is nothing without them."""
_NO_MEDIA = "[Ava has taken out {kind}: what it costs cannot be known before it is sent. Read it as text, if you can.]"
_TOOL_AT_HAND = "[The tool {name} can be called.]"
"""In place of a reference to a tool that is found: the provider would show its schema again."""
_TOOL_AWAY = "[The tool {name} cannot be called.]"
_NOTE = "ava"
"""The field of Google's `response` that says what was taken out beside it: only media may stand there."""
_NAME_CHARS = 60
MOST_TAKEN = 100
"""Names of what was taken out that are kept of one request: an agent can think of ever new ones."""
_DATED = re.compile(r"_\d{8}\Z")
_OUT = object()


def unseen(what: Any) -> CallRefused:
    return CallRefused("form", f"{str(what)[:_NAME_CHARS]} cannot be sent: Ava does not see what it stands for")


class Closing:
    """Closes the values of one request to what its form has; `taken` names what was taken out, each once."""

    def __init__(self, form: BodyForm, off: frozenset[str] = frozenset()) -> None:
        self._form = form
        self._off = off  # names of the agent's own tools that are taken out
        self.taken: dict[str, None] = {}

    def close(self, name: str, value: Any) -> Any:
        """Return a field of a request as it may be sent; None: nothing is left of it. Raises CallRefused."""
        closed = self._close(value, self._form.fields[name], name)
        return None if closed is _OUT else closed

    def close_tool(self, tool: Mapping[str, Any], kind: str) -> Any:
        """Return a tool that the agent itself runs. Raises CallRefused if its kind is not known."""
        return self._fields(tool, self._form.tools.known[kind], "tools")

    def is_taken_tool(self, kind: str) -> bool:
        """Tell whether it is a kind of tool that the provider runs, or that comes with a prompt of the provider's."""
        return _DATED.sub("", kind) in self._form.taken_tools

    def take(self, name: str) -> None:
        """Note the name of what was taken out."""
        if len(self.taken) < MOST_TAKEN:
            self.taken[name] = None

    def _close(self, value: Any, shape: Shape, path: str) -> Any:
        match shape:
            case Leaf():
                return self._leaf(value, shape, path)
            case Words():
                if isinstance(value, str) and value in shape.known:
                    return value
                return self._out(path)
            case Listed():
                return self._listed(value, shape, path)
            case Content():
                return self._content([value] if isinstance(value, dict) else value, shape, path)
            case GooglePart():
                return self._part(value, shape, path)
            case FormChoice():
                return self._close(value, shape.words if isinstance(value, str) else shape.objects, path)
            case Fields() | Kinds():
                fields = as_object(value)
                if fields is None:
                    return self._not_an_object(value, shape, path)
                return self._fields(fields, self._of_kind(fields, shape, path), path)

    def _leaf(self, value: Any, shape: Leaf, path: str) -> Any:
        match shape:
            case Leaf.FREE:
                return value
            case Leaf.MARK:
                return {"type": "ephemeral"}
            case Leaf.EMPTY:
                return [] if value == [] else self._out(path)
            case Leaf.PLAIN:
                return self._out(path) if isinstance(value, list | dict) else value

    def _not_an_object(self, value: Any, shape: Fields | Kinds, path: str) -> Any:
        if shape.refuses:
            raise unseen(f"a {type(value).__name__} in {path}")
        return self._out(path)

    def _of_kind(self, fields: Mapping[str, Any], shape: Fields | Kinds, path: str) -> Fields | None:
        """Return the fields that an object may have; None: it is taken out."""
        if isinstance(shape, Fields):
            return shape
        kind = fields.get("type") or shape.default
        is_short_message = path == self._form.items and "role" in fields
        if not kind and is_short_message:
            kind = "message"
        if isinstance(kind, str) and kind in shape.known:
            return shape.known[kind]
        if shape.refuses:
            raise unseen(kind or f"a part of {path} without a type")
        return None

    def _fields(self, fields: Mapping[str, Any], shape: Fields | None, path: str) -> Any:
        if shape is None:
            return self._out(path)
        closed: dict[str, Any] = {}
        for given, value in fields.items():
            name = self._form.name(given, shape.known)
            inner = f"{path}.{name[:_NAME_CHARS]}"
            if name in shape.known:
                made = None if value is None else self._close(value, shape.known[name], inner)
                if made is not _OUT:
                    closed[name] = made
            elif name in _REFERENCES and value:
                raise unseen(name)
            elif value is not None:
                self.take(inner)
        if path == self._form.items and _is_without_content(closed):
            return self._out(f"{path}: a {closed['type']} without content")
        if closed.get("type") == "reasoning" and not closed.get("encrypted_content"):
            closed.pop("id", None)  # the provider would look for what it has stored under it
        return closed

    def _listed(self, value: Any, shape: Listed, path: str) -> Any:
        """Return what may stay of a list, also an empty one; nothing of a value alone that may not be in one."""
        if isinstance(value, str) and shape.text is not None:
            value = {**shape.text, "content": value}
        is_list = isinstance(value, list)
        kept: list[Any] = []
        for each in as_list(value) if is_list else [value]:
            if each is None:
                continue
            closed = self._close(each, shape.of, path)
            if closed is not _OUT:
                kept.append(closed)
        if not kept and not is_list:
            return _OUT
        return kept

    def _content(self, value: Any, shape: Content, path: str) -> Any:
        if isinstance(value, list):
            return [self._content(each, shape, path) for each in as_list(value)]
        part = as_object(value)
        if part is None:
            return value
        kind = part.get("type")
        if isinstance(kind, str) and kind in MEDIA:
            self.take(kind)
            return self._sentence(_NO_MEDIA.format(kind=f"a part of type {kind}"))
        if kind == "tool_reference":
            self.take(kind)
            return self._sentence(_TOOL_AT_HAND.format(name=str(part.get("tool_name"))[:_NAME_CHARS]))
        if kind in ("tool_addition", "tool_removal"):
            return self._tool_change(part, kind)
        return self._close(part, shape.parts, path)

    def _tool_change(self, part: Mapping[str, Any], kind: str) -> Any:
        """Return what tells the model of a tool that comes or goes; those of the request are offered all along."""
        tool = as_object(part.get("tool")) or {}
        definition = as_object(tool.get("definition"))
        name = str((definition or tool).get("name") or tool.get("server_name"))
        is_off = kind == "tool_removal" or name in self._off or "server_name" in tool
        if definition is not None and not is_off:
            of_kind = definition.get("type") or ""
            if isinstance(of_kind, str) and of_kind in self._form.tools.known:
                closed = {"type": "tool_definition", "definition": self.close_tool(definition, of_kind)}
                return {"type": kind, "tool": closed}
            is_off = True
        self.take(f"{kind} {name[:_NAME_CHARS]}")
        return self._sentence((_TOOL_AWAY if is_off else _TOOL_AT_HAND).format(name=name[:_NAME_CHARS]))

    def _part(self, value: Any, shape: GooglePart, path: str) -> Any:
        fields = as_object(value)
        if fields is None:
            raise unseen(f"a {type(value).__name__} in {path}")
        known = {*shape.known, *_GOOGLE_MEDIA}
        named = {self._form.name(name, known): each for name, each in fields.items() if each is not None}
        for medium in sorted(_GOOGLE_MEDIA & named.keys()):
            self.take(medium)
            return self._sentence(_NO_MEDIA.format(kind=medium))
        other = named.keys() - shape.known.keys()
        if other:
            raise unseen(min(other))
        closed = self._fields(named, Fields(shape.known), path)
        result = as_object(closed.get("functionResponse"))
        if result is not None and result.get("parts"):
            closed["functionResponse"] = _with_note(result)
        return closed

    def _sentence(self, text: str) -> dict[str, str]:
        if self._form.part:
            return {"type": self._form.part, "text": text}
        return {"text": text}

    def _out(self, path: str) -> Any:
        self.take(path)
        return _OUT


def _with_note(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result of Google's with the sentences about what stood beside it in its `response`."""
    sentences = [part["text"] for part in objects_in(result.get("parts"))]
    kept = {name: value for name, value in result.items() if name != "parts"}
    return {**kept, "response": {**(as_object(result.get("response")) or {}), _NOTE: " ".join(sentences)}}


def _is_without_content(item: Mapping[str, Any]) -> bool:
    """Tell whether an item of the responses format could only stand for what the provider has stored under its id."""
    match item.get("type"):
        case "reasoning":
            return not (item.get("encrypted_content") or item.get("content"))
        case "compaction" if "content" not in item:
            return not item.get("encrypted_content")
        case "message":
            return item.get("content") is None
        case _:
            return False
