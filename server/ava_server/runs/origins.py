"""Where the values of a call come from: what was read from outside does not decide what a run changes or sends.

A call of another server's tool that changes something takes only values from the approved task, its context, a person's
answers, and the sources that its role names in `effects`. A call that only reads, but whose arguments leave the
machine, must not carry what the run has read from files and other servers. Everything else is asked of a person.

Compared is the text as the model was shown it, without case and with equal spaces: a whole value, or each word of it.
Numbers are compared as numbers, and an IBAN, card or telephone number also without its blanks. What a model encodes or
rewrites is in no approved text, so it is asked. What leaves is also compared by its letters and digits alone, forwards
and backwards, so that signs between them hide nothing. Nothing here takes much longer for a long text than its length:
a hostile one must not hold up the other runs.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, unquote_plus

import anyio.to_thread
import pydantic_core

from ava_roles.passages import UNSPACED, filler_words
from ava_roles.role import ANY
from ava_roles.tools.run import READ_SKILL, READ_SUBAGENT_RESULT
from ava_roles.wrap import clean, one_line
from ava_server.core.threads import compute_alone
from ava_server.runs.history import PROJECT_FILES, SCRATCHPAD
from ava_server.runs.questions import MOST_VALUES, VALUE_CHARS, Doubt
from ava_server.runs.quotes import unwrap_output

if TYPE_CHECKING:
    from ava_audit.events import ToolResult
    from ava_roles.tool import Tool, ToolSpec
    from ava_server.runs.history import History

READ_RESULT = READ_SUBAGENT_RESULT.name
_BROUGHT = (READ_RESULT, PROJECT_FILES)
"""In place of a tool's name: what the task has brought, or what is read back. It counts as files do."""
NAME_CHARS = 100
"""Characters of the name of an argument that are shown."""
MOST_LOOKED_FOR = 100
"""Pieces of the values of one call that are looked for; with more, a person is asked about all that no page shows."""
MOST_SAID = 20
"""Words of a call of a source that are left out of its result; with more, the result counts for nothing."""
MANY_WORDS = 8
"""From more words on, those that stand alone in approved texts are collected once."""
MOST_OF_SOURCES = 2_000_000
"""Characters of a source's results that count; what comes later is asked about."""
MOST_READ = 500_000_000
"""Characters of approved texts that are looked through for one call; then only words that stand alone are found."""
MOST_NUMBERS, NUMBER_CHARS = 20_000, 40
"""Numbers with separators in approved texts, and characters of one, that are read."""
LONG_CHARS = 200_000
"""Characters of results and arguments from which a check takes more than a few milliseconds."""
MOST_INSIDE = 1_000
"""How often a word may stand inside of longer ones before it stands alone."""
DATA_CHARS, DATA_WORDS = 8, 5
"""Characters of a word with a digit or an `@`, and words in a row, from which they count as data."""
DATA_DIGITS, GLUED_CHARS = 11, 12
"""Digits, and characters of words without a space, from which they count as data whatever stands between them."""
NUMBER_DIGITS = 7
"""Digits from which a number may be written with blanks in one text and without in another, as accounts are."""
SPELLED_CHARS = 3
"""Characters of a word up to which several in a row count as one that signs have split."""
MOST_UNQUOTED = 10
"""How often percent signs are decoded; what is encoded more often counts as hidden."""
_AROUND = "()[]{}<>\"'`,.;:!?“”‘’«»、。，；：！？「」『』（）《》"
_SPLIT = re.compile(r"[\s,;|、。，；：！？]+")
_GLUED = re.compile(f"[{UNSPACED}\uac00-\ud7a3]+")
"""Scripts without spaces, and Korean, whose particles follow a word: an address may stand right beside them."""
_ALONE = re.compile(r"[\w@.+-]+")
_NUMBER = re.compile(r"(?<![\w.,])([-+]?\d++(?:[.,'’]\d++| \d{3}(?!\d))*+)(\w*)")
_WRITTEN = [
    (group, point, re.compile(rf"[-+]?(?:\d+|\d{{1,3}}(?:[{group}]\d{{3}})+)(?:[{point}]\d+)?"))
    for group, point in ((",", "."), (".", ","), ("'’ ", "."), ("'’ ", ","))
]
_ROW_OF_ACCENTS = re.compile(r"[^\w\s\x00-\x7f]{30}")
"""As long as rows are in Unicode's Stream-Safe Text Format (UAX 15): to compose longer ones takes quadratic time."""
_JSON = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\W_]+")
_SIGNS = re.compile(r"[\W_]+")
_DATA = re.compile(r"[\w@.+-]+|[^\s/?&=#:,;|\"'<>()]+")
_GROUPED = re.compile(r"(\+?)([0-9a-z(][0-9a-z ()/-]*)")
"""A number in groups, as accounts, cards and telephones have it."""
_IBAN = re.compile(r"[a-z]{2}\d{2}[a-z0-9]{11,30}")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
_SHORT_NUMBER = re.compile(r"[\d.:-]{,10}")
"""A version, a date, an amount: it tells little, and searches are full of them."""
_BASE64 = re.compile(r"[A-Za-z0-9+_-]{11,}")
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2}[:\s-]?){8,}")


class Origins:
    """The origins of one run's values, from its history: a resumed run has the same."""

    def __init__(self, history: History, effects: Mapping[str, tuple[str, ...]], specs: Mapping[str, ToolSpec]) -> None:
        self._history = history
        self._effects = effects
        self._specs = specs
        self._private = any(  # it reads what is not public
            spec.files
            or spec.commands
            or spec.memory
            or spec.results
            or spec.foreign is not None
            or spec.name == READ_SKILL.name
            for spec in specs.values()
        )
        self._texts: list[str] = []
        self._counted, self._chars = 0, 0
        self._keyed: dict[tuple[int, str], str] = {}

    def is_long(self, tool: Tool, args_chars: int) -> bool:
        """Tell whether the check of a call reads so much that other runs would wait: then use `doubts_apart`."""
        outputs = self._history.outputs
        self._chars += sum(len(result.output) for _seq, result in outputs[self._counted :])
        self._counted = len(outputs)
        return self._checks(tool.spec) and self._chars + args_chars > LONG_CHARS

    async def doubts_apart(self, tool: Tool, args: Mapping[str, Any]) -> tuple[Doubt, ...]:
        """Return what `doubts` does, from a thread."""

        def alone() -> tuple[Doubt, ...]:
            with compute_alone():
                return self.doubts(tool, args)

        return await anyio.to_thread.run_sync(alone)

    def doubts(self, tool: Tool, args: Mapping[str, Any]) -> tuple[Doubt, ...]:
        """Return the values of a call that a person has to allow; none for most tools, at once."""
        spec = tool.spec
        if not self._checks(spec):
            return ()
        found = self._unapproved(spec, args) if self._takes_approved(spec) else self._carried(spec, args)
        allowed = self._history.decided(allowed=True)
        left = (each for each in found if (spec.name, each.argument, each.value) not in allowed)
        return tuple(islice(left, MOST_VALUES + 1))

    def _checks(self, spec: ToolSpec) -> bool:
        return self._takes_approved(spec) or (spec.network and (self._private or self._has_inputs))

    @property
    def _has_inputs(self) -> bool:
        """Whether its task has brought results of other runs, or files of the project."""
        task = self._history.task
        return task is not None and bool(task.inputs or task.project)

    def _takes_approved(self, spec: ToolSpec) -> bool:
        """Tell whether a tool counts as one that changes things; where a role has rules, no server's word counts."""
        return spec.foreign is not None and (spec.writes or (bool(self._effects) and spec.network))

    # -- what is approved ---------------------------------------------------------------------------------------------

    def _unapproved(self, spec: ToolSpec, args: Mapping[str, Any]) -> Iterator[Doubt]:
        words = _declared(spec.foreign)
        by_person = _Approved(self._approved())
        known: dict[tuple[str, ...], _Approved] = {}
        for name, leaf in _values(spec, args):
            rule = self._effects.get(f"{spec.name}.{name}", self._effects.get(spec.name, ()))
            if ANY in rule or leaf in words or by_person.has(leaf):
                continue
            if rule not in known:
                known[rule] = _Approved([*self._approved(), *self._named(rule, by_person)])
            if not known[rule].has(leaf):
                given = _plain(str(leaf))
                # The tool that brought it; a call of a tool that there is not has a name by the model.
                known_tools = (*self._specs, PROJECT_FILES)
                found = (of.tool for at, of in self._results() if of.tool in known_tools and given in self._text(at))
                yield Doubt(one_line(name, NAME_CHARS), visible(leaf), next(found, "") if given else "")

    def _approved(self) -> list[str]:
        """Return the texts that a person has approved or written: the task, its context and answers."""
        task = self._history.task
        texts = [task.text, task.context or "", task.system_prompt or ""] if task is not None else []
        answers = (each.text for each in list(self._history.answers.values()) if each.by_person)
        return [_plain(text) for text in (*texts, *answers)]

    def _named(self, rule: Sequence[str], by_person: _Approved) -> Iterator[str]:
        """Yield what the sources of a rule have returned; a tool that changes things is none.

        What a call itself said is left out: a source that repeats a question has not answered it.
        """
        left = MOST_OF_SOURCES
        for source in rule:
            name, _, key = source.partition(".")
            spec = self._specs.get(name)
            if spec is None or spec.writes:
                continue
            for place, result in self._results():
                if result.tool != name or not result.success:
                    continue
                said = {
                    word
                    for leaf in leaves(self._history.inputs[place])
                    if not by_person.has(leaf)
                    for word in (_plain(str(leaf)), *_words(_plain(str(leaf))))
                }
                text = self._field(place, key) if key else self._text(place)
                left -= len(text)
                if left < 0:
                    return
                if len(said) <= MOST_SAID:
                    yield _without(said, text)

    # -- what is private ----------------------------------------------------------------------------------------------

    def _carried(self, spec: ToolSpec, args: Mapping[str, Any]) -> Iterator[Doubt]:
        results = [each for each in self._results() if each[1].tool in self._specs or each[1].tool in _BROUGHT]
        # What the model has noted is in no result, or in the one that it is from.
        private = [(at, of) for at, of in results if not self._is_of_web(of) and of.tool != SCRATCHPAD]
        if not private:
            return
        values = [(name, str(leaf), _Data(str(leaf))) for name, leaf in _values(spec, args)]
        every = _Data.union(data for _name, _given, data in values)
        many = every.most > MOST_LOOKED_FOR
        brought = {} if many else self._bringers(every, private)
        public = self._public(results) if brought or many else ""
        free = every.found_in(public) if brought else set[Any]()
        for name, given, data in values:
            carried = [brought[each] for each in data if each in brought and each not in free]
            suspect = bool(carried) or (many and data.most > 0)
            if data.hidden or (suspect and not _within(_plain(given), public)):
                yield Doubt(one_line(name, NAME_CHARS), visible(given), carried[0] if carried else "")

    def _bringers(self, data: _Data, results: Iterable[tuple[int, ToolResult]]) -> dict[Any, str]:
        """Return which tool has brought each piece of data first."""
        brought: dict[Any, str] = {}
        for place, result in results:
            brought = {**dict.fromkeys(data.found_in(self._text(place)), result.tool), **brought}
        return brought

    def _public(self, results: Iterable[tuple[int, ToolResult]]) -> str:
        """Return what is not secret in the run; a refusal repeats what the model wrote, so only what pages say."""
        pages = (self._text(at) for at, of in results if self._is_of_web(of) and of.success)
        return "\n".join([*self._approved(), *pages])

    def _is_of_web(self, result: ToolResult) -> bool:
        """Tell whether a result is of the web; one that was read back has the sources of the first."""
        if result.tool in _BROUGHT:
            return False
        spec, read = self._specs[result.tool], [str(source["location"]) for source in result.sources]
        of_web = spec.network and spec.foreign is None
        return of_web or (bool(read) and all(each.startswith(("http://", "https://")) for each in read))

    # -- the results --------------------------------------------------------------------------------------------------

    def _results(self) -> Iterator[tuple[int, ToolResult]]:
        return ((place, result) for place, (_seq, result) in enumerate(self._history.outputs))

    def _text(self, place: int) -> str:
        """Return a result as it is compared."""
        outputs = self._history.outputs
        for _seq, result in outputs[len(self._texts) : place + 1]:
            self._texts.append(_plain(unwrap_output(result.output)))
        return self._texts[place]

    def _field(self, place: int, key: str) -> str:
        if (place, key) not in self._keyed:
            found = _fields(self._history.outputs[place][1], key)
            self._keyed[place, key] = "\n".join(map(_plain, found))
        return self._keyed[place, key]


class _Approved:
    """Approved texts, as they are compared."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._text = "\n".join(texts)
        self._left = MOST_READ

    def has(self, leaf: Any) -> bool:
        """Tell whether a value stands in it: whole, as a number, or word for word."""
        if isinstance(leaf, bool) or leaf is None or leaf == "":
            return True
        if isinstance(leaf, int | float):
            return self._counts({Decimal(repr(leaf))}) or self._has_grouped(repr(leaf))
        given, hidden = _plain(leaf), clean(leaf)[1]
        if hidden or (given.isascii() and not any(char.isalnum() for char in given)):  # `..` is a place, too
            return False
        if not given.isdecimal() and self._has_within(given):
            return True
        if self._has_grouped(given):
            return True
        words = _words(given) - filler_words()
        if not words:  # "everything" says little, and means much
            return False
        if len(words) > MANY_WORDS:
            words -= self._alone
        return all(map(self._has_word, words))

    def _has_word(self, word: str) -> bool:
        stands = not word.isdecimal() and self._has_within(word)
        return stands or self._counts(_readings(word)) or self._has_grouped(word)

    def _has_grouped(self, given: str) -> bool:
        """Tell whether an IBAN, card or telephone number stands in it as a whole, however both are grouped."""
        form = _grouped_form(given)
        if form is None or self._left <= 0:
            return False
        self._left -= len(self._text)
        return form.search(self._text) is not None

    def _has_within(self, value: str) -> bool:
        if self._left <= 0:
            return value in self._alone
        self._left -= len(self._text)
        return _within(value, self._text)

    @cached_property
    def _alone(self) -> set[str]:
        found = (each.rstrip(".") for each in _ALONE.findall(_apart(self._text)))
        return {each for each in found if not each.isdecimal()}

    def _counts(self, readings: set[Decimal]) -> bool:
        return any(
            each in self._written
            or (each.is_finite() and each == each.to_integral_value() and f"{each:.0f}" in self._numbers)
            for each in readings
        )

    @cached_property
    def _numbers(self) -> set[str]:
        found = {written for written, letters in _NUMBER.findall(_apart(self._text)) if not letters}
        return {written.lstrip("0+") or "0" for written in found}

    @cached_property
    def _written(self) -> set[Decimal]:
        found = (each for each in self._numbers if not each.isdecimal() and len(each) <= NUMBER_CHARS)
        return {number for each in islice(found, MOST_NUMBERS) for number in _readings(each)}


def _apart(text: str) -> str:
    return text if text.isascii() else _GLUED.sub("\n", text)


def _plain(text: str) -> str:
    plain = " ".join(clean(text)[0].lower().split())
    if plain.isascii():
        return plain
    return unicodedata.normalize("NFC", _ROW_OF_ACCENTS.sub("\\g<0>\u034f", plain))  # U+034F is not an accent


def _words(plain: str) -> set[str]:
    return {word.strip(_AROUND) for word in _SPLIT.split(plain)} - {""}


def _grouped_form(given: str) -> re.Pattern[str] | None:
    """Return what finds a number with any blanks in it; None for what is no IBAN, card or telephone number.

    It is not found as a part of a longer number, nor of one that goes on after a blank.
    """
    found = _GROUPED.fullmatch(given)
    chars = "".join(filter(str.isalnum, found[2])) if found is not None else ""
    if found is None or len(chars) > NUMBER_CHARS or sum(map(str.isdigit, chars)) < NUMBER_DIGITS:
        return None
    if not chars.isdecimal() and not _is_iban(chars):
        return None
    first = r"(?<![\w@+])(?<!\d[ .,/-])" + (r"\+" if found[1] else "") + r"\(?"
    return re.compile(first + "[ ()/-]{0,2}".join(chars) + r"(?![\w@])(?![ .,/-]\d)")


def _is_iban(chars: str) -> bool:
    """Tell whether the check digits of an IBAN (ISO 13616) hold, so that no other word counts as one."""
    if not _IBAN.fullmatch(chars):
        return False
    return int("".join(str(int(char, 36)) for char in chars[4:] + chars[:4])) % 97 == 1


def _within(value: str, text: str) -> bool:
    """Tell whether a value stands in a text as a whole: not as a part of a longer word, address or number."""
    at = text.find(value)
    for _each in range(MOST_INSIDE):
        if at < 0:
            return False
        before, after = text[at - 1 : at], text[at + len(value) : at + len(value) + 2]
        inside = (before and _goes_on(before, "_@.+-")) or (
            after and (_goes_on(after[0], "_@+-") or (after[0] == "." and after[1:].isalnum()))
        )
        if not inside:
            return True
        at = text.find(value, at + 1)
    return False


def _goes_on(char: str, signs: str) -> bool:
    return char in signs or (char.isalnum() and _GLUED.match(char) is None)


def _without(words: Collection[str], text: str) -> str:
    for word in sorted(words, key=len, reverse=True):
        if word in text:
            text = re.sub(rf"(?<![\w@.+-]){re.escape(word)}(?![\w@+-]|\.\w)", "\n", text)
    return text


def _readings(word: str) -> set[Decimal]:
    """Return what a written number can mean: 1,250 is another number in German. The parts of a date are numbers."""
    found = {
        Decimal(re.sub(f"[{group}]", "", word).replace(point, "."))
        for group, point, form in _WRITTEN
        if form.fullmatch(word)
    }
    if " " in word or (not found and re.fullmatch(r"[-+]?\d[\d.,'’ ]*", word)):
        found.update(map(Decimal, re.findall(r"\d+", word)))
    return found


def visible(value: Any) -> str:
    """Return a value as a person is shown it: with the characters that nobody sees."""
    text = str(value)
    if not clean(text)[1]:
        return text
    return "".join(f"⟨U+{ord(char):04X}⟩" if clean(f"a{char}b")[1] else char for char in text[: VALUE_CHARS + 1])


def _values(spec: ToolSpec, args: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of a call, each with its argument; also the names of arguments that its definition lacks."""
    known = spec.args.model_fields if spec.foreign is None else spec.foreign.get("properties", ())
    for name, value in args.items():
        if name not in known:
            yield name, name
        for leaf in leaves(value):
            yield name, leaf


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values in an argument, and the names in it that the model has chosen."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            for name, inner in reversed(cast("dict[str, Any]", each).items()):
                left += (inner, name)
        elif isinstance(each, list | tuple):
            left += reversed(cast("Sequence[Any]", each))
        else:
            yield each


def _declared(schema: Any) -> frozenset[Any]:
    """Return what the approved definition of a tool names itself: its fields, and the values of its lists."""
    found: set[Any] = set()
    if isinstance(schema, dict):
        for key, each in cast("dict[str, Any]", schema).items():
            if key == "properties" and isinstance(each, dict):
                found.update(cast("dict[str, Any]", each))
            elif key in ("enum", "const", "default"):
                values = cast("list[Any]", each) if isinstance(each, list) else [each]
                found.update(value for value in values if isinstance(value, str | int | float))
            found |= _declared(each)
    elif isinstance(schema, list):
        for each in cast("list[Any]", schema):
            found |= _declared(each)
    return frozenset(found)


def _fields(result: ToolResult, key: str) -> Iterator[str]:
    """Yield what a result has in fields of a name, if it is JSON; it may have been cut.

    Of several JSON values the last one counts: it is the structured form of the others.
    """
    text, at, given = unwrap_output(result.output).strip(), 0, None
    try:
        while at < len(text):
            given, end = _JSON.raw_decode(text, at)
            at = cast("re.Match[str]", _SPACE.match(text, end)).end()
    except (ValueError, RecursionError):
        try:
            given = pydantic_core.from_json(text[at:], allow_partial=True)
        except ValueError:
            return
    yield from _under(given, key)


def _under(value: Any, key: str) -> Iterator[str]:
    left = [value]  # not by recursion: a server chooses how deep it goes
    while left:
        each = left.pop()
        if isinstance(each, dict):
            fields = cast("dict[str, Any]", each)
            yield from map(str, leaves(fields.get(key, ())))
            left += (inner for name, inner in fields.items() if name != key)
        elif isinstance(each, list):
            left += cast("list[Any]", each)


class _Data:
    """What may be data in a value that leaves the machine, also in what base64 or hex encodes in it.

    Rows of words; words with digits; and, whatever stands between them, digits, the letters of glued or spelled words,
    and windows of words with digits. Rows and windows count backwards, too.
    """

    def __init__(self, given: str = "") -> None:
        plain, is_whole = _unquoted(given)
        self.hidden = clean(plain)[1] > 0 or not is_whole  # what nobody sees can hold anything
        self._rows: set[tuple[str, ...]] = set()
        self._pieces: set[str] = set()
        self._close: set[str] = set()
        self._windows: set[str] = set()
        for text in _decoded(plain):
            self._take_digits("".join(self._take(_folded(_plain(text)))))
        words = _WORD.findall(_folded(_plain(plain)))
        backwards = [word[::-1] for word in reversed(words)]
        self._rows.update(_rows(backwards))
        self._take_digits("".join(backwards))
        for joined in ("".join(words), "".join(backwards)):
            for chars in (DATA_CHARS, GLUED_CHARS):
                self._windows.update(joined[at : at + chars] for at in range(len(joined) - chars + 1))

    def _take(self, plain: str) -> list[str]:
        """Take what a text has, and return its words."""
        words = _WORD.findall(plain)
        self._rows.update(_rows(words))
        self._pieces.update(
            filter(_is_data, (each for found in _DATA.findall(plain) for each in (found, *_SIGNS.split(found))))
        )
        for word in (*words, *_spelled(words)):
            last = len(word) - GLUED_CHARS
            starts = {*range(0, last, GLUED_CHARS // 2), last} if last >= 0 else set[int]()
            self._close.update(word[at : at + GLUED_CHARS] for at in starts)
        return words

    def _take_digits(self, joined: str) -> None:
        for digits in re.findall(rf"\d{{{DATA_DIGITS},}}", joined):
            self._close.update(digits[at : at + DATA_DIGITS] for at in range(len(digits) - DATA_DIGITS + 1))

    @classmethod
    def union(cls, several: Iterable[_Data]) -> _Data:
        found = cls()
        for each in several:
            found._rows |= each._rows
            found._pieces |= each._pieces
            found._close |= each._close
            found._windows |= each._windows
        return found

    @property
    def most(self) -> int:
        """How many pieces have to be looked for one by one."""
        return len(self._pieces) + len(self._close)

    def __iter__(self) -> Iterator[Any]:
        return chain(self._rows, self._pieces, self._close, ((window,) for window in self._windows))

    def found_in(self, text: str) -> set[Any]:
        """Return what of it stands in a text."""
        text = _folded(text)
        found: set[Any] = {each for each in self._pieces if each in text}
        words = _WORD.findall(text) if self._rows or self._close else []
        if self._close:
            close = "".join(words)
            found |= {each for each in self._close if each in close and (each not in text or _is_data(each))}
        found |= {(window,) for word in _data_words(text) for window in self._windows_of(word)}
        return found | self._rows.intersection(_rows(words))

    def _windows_of(self, word: str) -> Iterator[str]:
        """Yield the windows of a word that the value has; a short word counts if all of it is there."""
        if len(word) < GLUED_CHARS:
            windows = [word[at : at + DATA_CHARS] for at in range(len(word) - DATA_CHARS + 1)]
            if self._windows.issuperset(windows):
                yield from windows
            return
        for at in range(len(word) - GLUED_CHARS + 1):
            window = word[at : at + GLUED_CHARS]
            if window in self._windows and any(map(str.isdigit, window)):
                yield window


def _data_words(text: str) -> Iterator[str]:
    """Yield the letters and digits of each word of a text that counts as data."""
    if not any(map(str.isdigit, text)):
        return
    for found in _DATA.findall(text):
        if _is_data(found):
            word = "".join(_WORD.findall(found))
            if len(word) >= DATA_CHARS and any(map(str.isdigit, word)):
                yield word


def _spelled(words: Sequence[str]) -> Iterator[str]:
    """Yield what words make that are so short that signs may have split a longer one."""
    for is_short, several in groupby(words, lambda word: len(word) <= SPELLED_CHARS):
        if is_short:
            yield "".join(several)


def _rows(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(words[at:] for at in range(DATA_WORDS)), strict=False)


def _is_data(word: str) -> bool:
    is_long = len(word) >= DATA_CHARS and not _SHORT_NUMBER.fullmatch(word)
    return is_long and any(char.isdigit() or char == "@" for char in word)


def _folded(plain: str) -> str:
    """Return a text with one form for letters and digits that look alike, such as fullwidth ones."""
    if plain.isascii():
        return plain
    folded = unicodedata.normalize("NFKC", plain).lower()
    return _OTHER_DIGIT.sub(lambda found: str(unicodedata.decimal(found[0])), folded)


def _unquoted(given: str) -> tuple[str, bool]:
    """Return a text without percent encoding, and whether that was all of it: it may be encoded several times."""
    plain = unquote_plus(given)
    for _each in range(MOST_UNQUOTED):
        again = unquote(plain)
        if again == plain:
            return plain, True
        plain = again
    return plain, False


def _decoded(plain: str) -> Iterable[str]:
    yield plain
    for found in {*_BASE64.findall(plain), *_BASE64.findall(plain.replace("/", "_"))}:
        body = found.replace("-", "+").replace("_", "/")
        for begin in range(4):  # what stands before it may look like a part of it
            text = body[begin:]
            with contextlib.suppress(binascii.Error):
                yield base64.b64decode(text + "=" * (-len(text) % 4)).decode(errors="replace")
    for found in _HEX.findall(plain):
        digits = "".join(filter(str.isalnum, found))
        for begin in range(2):
            yield bytes.fromhex(digits[begin : len(digits) - (len(digits) - begin) % 2]).decode(errors="replace")
