"""Passages of texts that match the words of a question best, ranked by BM25; and which words count, in any form.

Words are compared by their stems (Snowball), in the language that the question's filler words tell; English forms that
have other stems, by their first one. Chinese, Japanese and Thai have no spaces: ICU (extra `languages`) cuts a question
into words, or without it each two characters count as one. They are looked for anywhere in a text.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import nsmallest
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

from ava_extras import has_extra, load
from ava_roles.texts.question_words import asked_in

_MAX_WORDS = 30
UNSPACED = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3005"
_MARKS = "".join(
    char for char in map(chr, (*range(0x300, 0xE00), *range(0xF00, 0x10A0))) if unicodedata.category(char)[0] == "M"
)
"""Vowels and other signs within words that `\\w` does not have (Hebrew, Arabic, the scripts of India and Burma).

Points and signs of money are not among them: the maqaf of Hebrew stands between two words.
"""
_ASCII_WORD = re.compile(r"[^\W_]+")
_WORD = re.compile(rf"[^\W_{UNSPACED}]+(?:[{_MARKS}]+[^\W_{UNSPACED}]*)*|[{UNSPACED}]+")
"""A word, or a run of signs without blanks between words, beside which one may stand: `2020年のGDP`."""
_UNSPACED_RUN = re.compile(f"[{UNSPACED}]+")
_UNSPACED_LETTERS = re.compile("[\u0e00-\u0eff\u1780-\u17ff]")
_LETTERS_NEAR = 6
_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
_HIRAGANA = re.compile(r"[\u3040-\u309f\u30fc]+")
_BROKEN = re.compile(f"(?<=[{UNSPACED}])\\s+(?=[{UNSPACED}])")
"""White space inside text without spaces: lines are broken anywhere there."""
_UNSEEN = re.compile("[\u00ad\u200c\u200d\u2060\ufeff]")
"""Signs within a word that say where to break it, or how to join its letters: the soft hyphen and its like."""
_PARTICLE = re.compile(r"(?<=[가-힣]{2})(?:에서|으로|까지|부터|에게|은|는|이|가|을|를|에|의|로|와|과|도)$")
_ENDING = re.compile(_PARTICLE.pattern + r"|(?<=[\u4e00-\u9fff]{2})[\u3040-\u309f]+$")
_CAPITAL = "[A-ZÀ-ÖØ-ÞΑ-ΩА-Я]"
_NAME = re.compile(rf"(?<=[\w,;:)] ){_CAPITAL}\w+(?: {_CAPITAL}\w+)+")
"""Capitalised words in a row, not at the beginning of a sentence."""
_LISTED = re.compile(r"\w[,;、，]\s*\w+(?: \w+){0,2}(?:[,;、，]| (?:and|or|und|oder|et|ou|y|o|e|ve|и) )\s*\w")
"""At most three words between a comma and another, or an `and`: a list of things, as the demo asks about."""
_ARABIC = re.compile("[\u0621-\u064a]")
_ARABIC_LEAST = 3
_LANGUAGES_MOST = 3
_NEAR_WORDS = 3
_BEGINNING = 3
"""Letters that a word and its stem have in common."""
_DIGIT = re.compile(r"\d")
_MAX_KNOWN = 1_000_000
_MAX_STEMMED = 10_000
"""How many words of texts are stemmed: a hostile text has many that begin like one of the question."""
_MAX_STEMMED_CHARS = 40
_PART_LEAST = 5
_OWN_LETTERS = {
    "russian": re.compile("[а-яё]"),
    "greek": re.compile("[α-ω]"),
    "korean": re.compile("[가-힣]"),
    "hindi": re.compile("[\u0904-\u0939]"),
    "turkish": re.compile("[ğı]"),
    "polish": re.compile("[łżźśęą]"),
    "czech": re.compile("[ěřů]"),
    "hungarian": re.compile("[őű]"),
    "romanian": re.compile("[țșă]"),
}
"""Letters that tell a language."""


@cache
def filler_words() -> frozenset[str]:
    return frozenset[str]().union(*_fillers().values())


@cache
def _fillers() -> dict[str, frozenset[str]]:
    fillers: dict[str, frozenset[str]] = {}
    for line in _lines_of("filler_words.txt"):
        language, colon, words = line.partition(":")
        if colon:
            fillers[language] = fillers.get(language, frozenset()).union(words.split())
    return fillers


def _lines_of(file: str) -> list[str]:
    """Return the lines of a file of words, without its comments."""
    text = files("ava_roles.texts").joinpath(file).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


@cache
def _irregular() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the English words whose forms have several stems.

    The first dictionary has the first form of each form, the second all forms by the stem of the first.
    """
    stem = _snowball().stemmer("english").stemWord
    first_forms: dict[str, str] = {}
    forms_by_stem: dict[str, list[str]] = {}
    for group in " ".join(_lines_of("irregular_words.txt")).split(","):
        forms = group.split()
        first_forms.update(dict.fromkeys(forms, forms[0]))
        forms_by_stem[stem(forms[0])] = forms
    return first_forms, forms_by_stem


class Matches(NamedTuple):
    """Where a text has a question's words: how often each, and (`pairs`) how often the next one closely follows."""

    counts: list[int]
    pairs: list[int]
    length: int


class Query:
    """The words of a question that count, at most 30, in lower case; only without others fillers (not `telling`).

    Question words count only in a question that has no other telling words. `kind`: what kind of answer they ask for,
    one of those of `question_words`, or empty. `text`: the question, in lower case. `names`: its names of several
    words, in lower case. `is_list`: all of its words count, as in "zebra, marzipan", or it lists three or more things.
    """

    def __init__(self, text: str) -> None:
        names = _NAME.findall(_fold(text))
        text = _fold(text).lower()
        self.text = text
        self._neighbours = _neighbours(text)
        written = list(dict.fromkeys(_split(text)))
        languages = _languages(written, text)
        # In German, every noun has a capital.
        self.names = () if "german" in languages else tuple(name.lower() for name in names)
        asked = [asked_in(language, text) for language in languages]
        self.kind = next((each.kind for each in asked if each.kind), "")
        subject = dict.fromkeys(_split(_where_all_agree([each.rest for each in asked])))
        telling_words = _without_fillers(list(subject), languages) or _without_fillers(written, languages)
        if not telling_words:  # as in 橋の長さは
            telling_words = [word for word in subject if _IDEOGRAPH.fullmatch(word) and word not in filler_words()]
        self.telling = bool(telling_words)
        self.is_list = telling_words == written or _LISTED.search(text) is not None
        candidates = telling_words or written
        if not all(map(_IDEOGRAPH.fullmatch, candidates)):
            candidates = [word for word in candidates if len(word) > 1] or candidates
        self._stems = _Stems(_stemmers(languages))
        self._parts: dict[int, str] = {}
        words: list[str] = []
        for word in candidates:
            if len(words) == _MAX_WORDS:
                break
            part = _part_of(word)
            if part:
                self._parts[len(words)] = part
                words.append(word)
            elif self._stems.learn(word, len(words)):
                words.append(word)
        self.words = tuple(words)

    def matches(self, text: str) -> Matches:
        text = _fold(text).lower()
        counts = [0] * len(self.words)
        pairs = [0] * len(self.words)
        tokens = _tokens(text)
        last_number = -1
        last_at = 0
        for at, number in enumerate(map(self._stems.__getitem__, tokens)):
            if number < 0:
                continue
            counts[number] += 1
            follows = number > 0 and number == last_number + 1
            if follows and at - last_at <= _NEAR_WORDS:
                pairs[last_number] += 1
            last_number = number
            last_at = at
        if text.isascii():
            return Matches(counts, pairs, len(tokens))
        if self._parts:
            joined = _BROKEN.sub("", text)
            for number, part in self._parts.items():
                counts[number] = joined.count(part)
        return Matches(counts, pairs, len(tokens) + _unspaced_words(text))

    def nearness(self, text: str) -> float:
        """Return the share of the question's pairs of neighbouring words, fillers too, that a text has; from 0 to 1."""
        found = self._neighbours & _neighbours(_fold(text).lower())
        return len(found) / max(len(self._neighbours), 1)

    def likeness(self, text: str, weights: Sequence[float]) -> float:
        """Return how much of the question a text has, from 0 to 1; of a word that it lacks, its longest part counts.

        So `Mannschaften` counts in part where `Sportmannschaft` stands. A part has at least five letters, and as much
        of the word as it is long. A very rare word weighs no more than a rare one.
        """
        counts = self.matches(text).counts
        text = _without_marks(_fold(text).lower())
        weights = [min(weight, _MAX_WEIGHT) for weight in weights]
        has = sum(
            weight * (1.0 if count else _longest_part(_without_marks(word), text))
            for word, weight, count in zip(self.words, weights, counts, strict=True)
        )
        return has / max(sum(weights), 0.001)

    def number_of(self, counts: Sequence[int]) -> float:
        """Return how many of the words have a count; those without blanks between them, which overlap, count half."""
        sizes = (0.5 if _UNSPACED_RUN.search(word) else 1.0 for word in self.words)
        return sum(size for size, count in zip(sizes, counts, strict=True) if count)

    @property
    def beginnings(self) -> frozenset[str]:
        """How the index terms begin that may be forms of a word."""
        return self._stems.beginnings

    def asks_for(self, term: str) -> bool:
        """Tell whether a term of an index (`index_terms`) is a form of a word."""
        return self._stems[term.partition(_MARKED)[2] or term] >= 0

    @property
    def tired(self) -> bool:
        """Whether so many terms were asked for that further ones are not stemmed any more."""
        return self._stems.tired

    def pairs_of_parts(self) -> list[list[str]]:
        """Return the pairs of characters of each word without spaces; a text with the word has them all."""
        return [sorted(_unspaced_terms(part)) for part in self._parts.values() if _UNSPACED_RUN.search(part)]

    def spaced_parts(self) -> list[str]:
        """Return the words that stand anywhere in a term, as Korean ones do before their endings."""
        return [part for part in self._parts.values() if not _UNSPACED_RUN.search(part)]

    def found_in(self, text: str) -> list[str]:
        """Return the question's words that a text has, as they stand there in lower case, in the question's order."""
        text = _fold(text).lower()
        forms: dict[int, str] = {}
        if self._parts:
            joined = _BROKEN.sub("", text)
            for number, part in self._parts.items():
                if part in joined:
                    forms[number] = part
        for token in _tokens(text):
            number = self._stems[token]
            if number >= 0:
                forms.setdefault(number, token)
        return [forms[number] for number in sorted(forms)]


_MARKED = "·"
"""Between a beginning without marks and a term that begins with them: `ube·über`."""
_TERM_CHARS = 200


def index_terms(text: str) -> set[str]:
    """Return what an index keeps of a text, so that `Query` finds it: its words, and pairs of characters."""
    text = _fold(text).lower()
    tokens = set(_tokens(text))
    if text.isascii():
        return {token[:_TERM_CHARS] for token in tokens}
    terms = _unspaced_terms(text)
    for token in tokens:
        if _UNSPACED_RUN.search(token) is not None:
            continue
        term = token[:_TERM_CHARS]
        beginning = _beginning_without_marks(token)
        if not token.startswith(beginning):
            term = f"{beginning}{_MARKED}{term}"
        terms.add(term)
    return terms


def _tokens(text: str) -> list[str]:
    """Return the words of a text, and its runs of characters without spaces."""
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text)


def _neighbours(text: str) -> set[str]:
    """Return each two words, or characters without spaces, that stand beside each other in a text in lower case."""
    near = {f"{first} {second}" for first, second in pairwise(_tokens(text))}
    for run in _UNSPACED_RUN.findall(_BROKEN.sub("", text)):
        size = _LETTERS_NEAR if _UNSPACED_LETTERS.match(run) else 2
        near.update(run[at : at + size] for at in range(len(run) - size + 1))
    return near


def _unspaced_terms(text: str) -> set[str]:
    terms: set[str] = set()
    for run in _UNSPACED_RUN.findall(_BROKEN.sub("", text)):
        terms.update(map("".join, pairwise(run)))
    return terms


def passage_length(text: str) -> int:
    """Return the length of a text in words, as `Query.matches` counts it."""
    text = _fold(text).lower()
    return len(_tokens(text)) + _unspaced_words(text)


def _unspaced_words(text: str) -> int:
    """A word in these scripts has about two characters; a run of them is one token."""
    if text.isascii():
        return 0
    return sum(len(run) // 2 for run in _UNSPACED_RUN.findall(text))


class _Stems(dict[str, int]):
    """The number of the word that a token is a form of; -1 for none. It stems only what begins like a word."""

    def __init__(self, stemmers: Iterable[Callable[[str], str]]) -> None:
        self._stemmers = tuple(stemmers)
        self._numbers: dict[str, int] = {}
        self._beginnings: set[str] = set()
        self._firsts: set[str] = set()
        self._left = _MAX_STEMMED

    def learn(self, word: str, number: int) -> bool:
        keys = self._keys(word)
        if not keys.isdisjoint(self._numbers):
            return False
        self._numbers.update(dict.fromkeys(keys, number))
        _, irregular = _irregular()
        for key in keys:
            for form in (key, *irregular.get(key, ())):
                self._beginnings.add(form[:_BEGINNING])
                self._firsts.add(form[:1])
        return True

    def __missing__(self, token: str) -> int:
        """Return the number of the question's word that a token is a form of, or -1; kept while there is room."""
        number = -1
        beginning = _beginning_without_marks(token)
        # Cheap, and most tokens begin like no word of the question.
        if beginning[:1] in self._firsts and self._begins_like_word(beginning):
            number = self._number_of(token)
        if len(self) < _MAX_KNOWN:
            self[token] = number
        return number

    def _begins_like_word(self, beginning: str) -> bool:
        return any(beginning[:length] in self._beginnings for length in range(_BEGINNING, 0, -1))

    def _number_of(self, token: str) -> int:
        for key in self._keys(token):
            if key in self._numbers:
                return self._numbers[key]
        return -1

    def _keys(self, word: str) -> set[str]:
        if not self._left or len(word) > _MAX_STEMMED_CHARS or _DIGIT.search(word):
            return {_without_marks(word)}
        self._left = max(self._left - len(self._stemmers), 0)
        return {_without_marks(stem(word)) for stem in self._stemmers}

    @property
    def beginnings(self) -> frozenset[str]:
        return frozenset(self._beginnings)

    @property
    def tired(self) -> bool:
        return not self._left


def _part_of(word: str) -> str:
    """Return the part of a word that may stand anywhere in a term of a text; empty for words that have a stem.

    Words without blanks between them, Korean ones, which have particles behind them, and Arabic ones, which have
    articles and pronouns before and behind them.
    """
    if _UNSPACED_RUN.search(word) or _PARTICLE.search(word):
        return _ENDING.sub("", word)
    if _ARABIC.search(word):
        stem = _without_marks(_stemmer("arabic")(word))
        return stem if len(stem) >= _ARABIC_LEAST else ""
    return ""


def _split(text: str) -> Iterable[str]:
    for token in _tokens(text):
        if _UNSPACED_RUN.search(token) is None:
            yield token
            continue
        if has_extra("languages"):
            language = "ja" if _HIRAGANA.search(text) else "zh"
            breaker: Iterable[str] = load("languages").WordBreaker(token, language)
            yield from _join_characters(word for word in breaker if any(map(str.isalnum, word)))
        else:
            yield from _pairs(token)


def _join_characters(words: Iterable[str]) -> Iterator[str]:
    """Yield words, with pairs of neighbours for Chinese characters in a row: a name that no dictionary has.

    A filler is none of them, and ends a row.
    """
    row = ""
    for word in words:
        if _IDEOGRAPH.fullmatch(word) and word not in filler_words():
            row += word
            continue
        yield from _pairs_or_all(row)
        row = ""
        yield word
    yield from _pairs_or_all(row)


def _pairs_or_all(row: str) -> Iterable[str]:
    return [row] if len(row) == 1 else map("".join, pairwise(row))


def _where_all_agree(texts: Sequence[str]) -> str:
    """Return texts of one length as one, with a blank wherever one of them has another character than the first."""
    return "".join(chars[0] if len(set(chars)) == 1 else " " for chars in zip(*texts, strict=True))


def _pairs(token: str) -> Iterable[str]:
    """Yield each two neighbours of the characters without spaces, as search engines without dictionaries do.

    Filler words and hiragana, which ends a Japanese word, are left out first.
    """
    for run in _UNSPACED_RUN.findall(_unspaced_fillers().sub(" ", token)):
        yield from _pairs_or_all(run)


@cache
def _unspaced_fillers() -> re.Pattern[str]:
    fillers = sorted((word for word in filler_words() if _UNSPACED_RUN.match(word)), key=len, reverse=True)
    return re.compile("|".join((*fillers, _HIRAGANA.pattern)))


def _is_telling(word: str) -> bool:
    """Tell whether a word can mean something: one Chinese character, or hiragana alone, hardly does."""
    if _UNSPACED_RUN.search(word) is None:
        return True
    return len(word) > 1 and _HIRAGANA.fullmatch(word) is None


def _without_fillers(words: Sequence[str], languages: Sequence[str]) -> list[str]:
    """Return the words that mean something in a question in these languages."""
    fillers = frozenset[str]().union(*(_fillers().get(language, ()) for language in languages))
    return [word for word in words if word not in fillers and _is_telling(word)]


def _languages(words: Sequence[str], question: str) -> list[str]:
    """Return the languages with most of a question's filler and question words; a language's letters count as one.

    If it has none, those that it is likely to be in.
    """
    counts: Counter[str] = Counter(
        {language: 1 for language, letters in _OWN_LETTERS.items() if letters.search(question)}
    )
    for language, fillers in _fillers().items():
        counts[language] += sum(word in fillers for word in words) + asked_in(language, question).found
    highest = max(counts.values())
    if not highest:
        return ["english", "german", "french", "spanish"]
    return [language for language, count in counts.items() if count == highest][:_LANGUAGES_MOST]


def language_of(text: str, least: int = 2) -> str | None:
    """Return the language that a text is clearly in, with the name it has in `filler_words.txt`; None: it is not clear.

    Its script tells, or filler words: at least `least`, and twice as many as of any other language.
    """
    text = _fold(text).lower()
    wide = _WIDE.findall(text)
    if len(wide) > sum(map(str.isalpha, text)) / 2:
        return _language_of_wide("".join(wide))
    counts: Counter[str] = Counter()
    languages = _languages_by_filler()
    for word in _tokens(text):
        for language in languages.get(word, ()):
            counts[language] += 1
    if not counts:
        return None
    (language, count), *others = counts.most_common(2)
    if count < least or any(count < 2 * other for _language, other in others):
        return None
    return language


def _language_of_wide(text: str) -> str | None:
    if len(_HANGUL.findall(text)) > len(text) / 2:
        return "korean"
    kana = len(_KANA.findall(text))
    if kana > len(text) / _KANA_LEAST:
        return "japanese"
    return None if kana else "chinese"


@cache
def _languages_by_filler() -> dict[str, list[str]]:
    languages: dict[str, list[str]] = {}
    for language, fillers in _fillers().items():
        for word in fillers:
            languages.setdefault(word, []).append(language)
    return languages


def _stemmers(languages: Iterable[str]) -> list[Callable[[str], str]]:
    """Return the stemmers of some languages; English, which technical words often are, for one without a stemmer."""
    known = _snowball().algorithms()
    names = dict.fromkeys(language if language in known else "english" for language in languages)
    return [_stemmer(name) for name in names]


def _stemmer(language: str) -> Callable[[str], str]:
    stem: Callable[[str], str] = _snowball().stemmer(language).stemWord
    if language != "english":
        return stem
    firsts, _ = _irregular()
    return lambda word: stem(firsts.get(word, word))


def _snowball() -> Any:
    import snowballstemmer

    return snowballstemmer


def _fold(text: str) -> str:
    """Return a text in the form in which words are compared: signs of usual width, and none that nobody sees."""
    return text if text.isascii() else _UNSEEN.sub("", unicodedata.normalize("NFKC", text))


def _longest_part(word: str, text: str) -> float:
    """Return the length of the longest part of a word that a text has, as a share of the word's; short ones are 0.

    A word that is too long to be stemmed has no parts, as their number grows with the square of its length.
    """
    if len(word) > _MAX_STEMMED_CHARS:
        return 0.0
    for length in range(len(word), _PART_LEAST - 1, -1):
        if any(word[start : start + length] in text for start in range(len(word) - length + 1)):
            return length / len(word)
    return 0.0


def _beginning_without_marks(word: str) -> str:
    return _without_marks(word[: 2 * _BEGINNING])[:_BEGINNING]  # a letter may have a mark of its own behind it


def _without_marks(word: str) -> str:
    if word.isascii():
        return word
    decomposed = unicodedata.normalize("NFKD", word.casefold())
    return "".join(char for char in decomposed if not unicodedata.combining(char))


_PASSAGE_CHARS = 1_200
HEADING_CHARS = 30
"""About how many characters the line with a passage's place takes."""
_MAX_RANKED = 1_000
_MAX_WEIGHT = 5.0
_PAIR_SHARE = 0.7
_SATURATION = 1.2
"""BM25's k1."""
_LENGTH_SHARE = 0.5
"""BM25's b."""
_PROSE_FILLERS = 0.2
"""With this share of filler words or more, a text counts as prose; lists of files and code have hardly any."""
_UNSPACED_SHARE = 0.4
_SYMBOL_SHARE = 0.12
_LEAST_PROSE = 0.4
_LETTERS = re.compile(r"[^\W\d_]+")
_NO_SYMBOL = re.compile(r"[\w\s.,;:!?'\"()\u2010-\u2027\u3000-\u303f\uff00-\uff65-]+")
_ENTRY = re.compile(r"(?<![\w.])\d+(?:\.\d+)+\.?\s")
_ENTRY_CHARS = 150
"""A table of contents has at least one entry in this many characters."""
_ROW = re.compile(r"^\| ", re.MULTILINE)
_RECORDS = re.compile(r"(?:^|/)(?:changelog|changes|copyright|news|todo)[^/]*$", re.IGNORECASE)
_RECORD_FACTOR = 0.6
_HANGUL = re.compile(r"[\uac00-\ud7af]")
_KANA = re.compile(r"[\u3040-\u30ff]")
_KANA_LEAST = 10
"""Japanese has a kana in this many characters or fewer."""
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True)
class FilePassage:
    """A piece of a file and its place there, e.g. `lines 10 to 18` or `page 3, 9 lines`.

    It is verbatim, but for the heads that `table_rows` gives the rows of tables.
    """

    where: str
    text: str


@dataclass(frozen=True)
class FileMatch:
    """A file that matches, with its best passages, the best first.

    `note`: how it was read, e.g. `read as Big5`. `sha256`: of the file that the passages are from.
    """

    path: str
    passages: tuple[FilePassage, ...]
    note: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class _Candidate:
    path: str
    passage: FilePassage
    position: int
    matches: Matches
    in_path: Sequence[int]

    @property
    def size(self) -> int:
        """The characters that it takes with its heading."""
        return len(self.passage.text) + HEADING_CHARS


class PassageRanking:
    """The passages that have words of a question. Texts are counted once and then forgotten, as the question is known.

    `spread`: in how many passages each word of the question is; `total`: how many passages there are.
    """

    def __init__(self, query: Query) -> None:
        self.spread = [0] * len(query.words)
        self.total = 0
        self._length = 0
        self._query = query
        self._candidates: list[_Candidate] = []

    def add(self, path: str, passages: Iterable[FilePassage]) -> int:
        """Add passages of a file, and return their length in words together."""
        before = self._length
        in_path = self._query.matches(path).counts
        for passage in passages:
            matches = self._query.matches(passage.text)
            self.total += 1
            self._length += matches.length
            for number, count in enumerate(matches.counts):
                self.spread[number] += count > 0
            if any(matches.counts) or any(in_path):
                self._candidates.append(_Candidate(path, passage, self.total, matches, in_path))
        return self._length - before

    def add_others(self, passages: int, length: int) -> None:
        """Count passages that have no word of the question, and how many words they have together."""
        self.total += passages
        self._length += length

    def best(self, max_files: int, max_chars: int = 18_000) -> tuple[FileMatch, ...]:
        """Return the best files, the best first, each with its best passage and those that rank next of all.

        `max_chars` bounds passages, paths and places together; the first passage is returned anyway.
        """
        by_file: dict[str, list[FilePassage]] = {}
        further: list[_Candidate] = []
        room = max_chars
        for each in self._ranked():
            if each.path in by_file:
                further.append(each)
                continue
            size = len(each.path) + each.size
            has_room = len(by_file) < max_files and size <= room
            if has_room or not by_file:
                by_file[each.path] = [each.passage]
                room -= size
        for each in further:
            if each.size <= room:
                by_file[each.path].append(each.passage)
                room -= each.size
        return tuple(FileMatch(path, tuple(passages)) for path, passages in by_file.items())

    def _ranked(self) -> list[_Candidate]:
        """Return the passages that match best, the best first; prose ranks higher than lists and code."""
        weigh = Weighing(weights_of(self.spread, self.total), self._length / max(self.total, 1))
        matching = nsmallest(
            _MAX_RANKED, ((-self._rank(each, weigh), each.position, each) for each in self._candidates)
        )
        in_order: list[tuple[float, int, _Candidate]] = []
        for rank, position, each in matching:
            text = each.passage.text
            in_order.append((rank * _prose_factor(text, filler_share(text)), position, each))
        return [each for _, _, each in sorted(in_order)]

    def _rank(self, each: _Candidate, weigh: Weighing) -> float:
        """Return the rank of a passage; a word in the path counts as once in the text."""
        counts = [here + min(there, 1) for here, there in zip(each.matches.counts, each.in_path, strict=True)]
        return weigh(each.matches._replace(counts=counts)) * record_factor(each.path)


def weights_of(spread: Sequence[int], total: int) -> list[float]:
    """Return how much each word tells, by the number of passages that have it (BM25's idf)."""
    return [math.log(1 + (total - count + 0.5) / (count + 0.5)) for count in spread]


@dataclass(frozen=True)
class Weighing:
    """Ranks texts by BM25; those with more of the question's words, or with two of them together, rank higher."""

    weights: Sequence[float]
    average: float

    def __call__(self, matches: Matches) -> float:
        norm = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * matches.length / max(self.average, 1))
        # A very rare word ranks no higher than a rare one: it may be only the asker's.
        weights = [min(weight, _MAX_WEIGHT) for weight in self.weights]
        rank = sum(
            w * count * (_SATURATION + 1) / (count + norm) for w, count in zip(weights, matches.counts, strict=True)
        )
        for number, count in enumerate(matches.pairs):
            if count:
                rank += _PAIR_SHARE * min(weights[number : number + 2]) * count * (_SATURATION + 1) / (count + norm)
        return rank * (0.25 + 0.75 * _weight_of(matches.counts, weights) / max(sum(weights), 0.001))

    def coverage(self, counts: Sequence[int]) -> float:
        """Return the share of the question that a text has, from 0 to 1: rare words count more than common ones."""
        total = sum(self.weights)
        return _weight_of(counts, self.weights) / total if total else 0.0


def _weight_of(counts: Sequence[int], weights: Sequence[float]) -> float:
    """Return the weight of the words that a text has, together."""
    return sum(weight for weight, count in zip(weights, counts, strict=True) if count)


def record_factor(path: str) -> float:
    """Return 1, and less for records of what was done or is to do, which mention everything and explain little."""
    return _RECORD_FACTOR if _RECORDS.search(path) else 1.0


def filler_share(text: str) -> float:
    """Return the share of filler words in a text, high in prose; texts in scripts without spaces count as prose."""
    words = list(map(str.lower, _LETTERS.findall(text)))
    if not words:
        return 0.0
    if len(_WIDE.findall(text)) > len(words):
        return _UNSPACED_SHARE
    return sum(map(filler_words().__contains__, words)) / len(words)


def _prose_factor(text: str, fillers: float) -> float:
    """Return 1 for prose and tables, less the more a text looks like code or a list of names.

    `fillers` is its share of filler words.
    """
    if 2 * len(_ROW.findall(text)) > text.count("\n"):
        return 1.0
    if not fillers:
        return _LEAST_PROSE
    filler_factor = min(fillers / _PROSE_FILLERS, 1.0)
    symbols = len(_NO_SYMBOL.sub("", text)) / len(text)
    symbol_factor = min(_SYMBOL_SHARE / max(symbols, 0.001), 1.0)
    list_factor = 1.0
    is_list = len(_ENTRY.findall(text)) > max(len(text) / _ENTRY_CHARS, 2)
    if is_list:
        list_factor = _LEAST_PROSE
    return max(filler_factor * symbol_factor * list_factor, _LEAST_PROSE)


def split_lines(text: str) -> list[str]:
    """Return the lines of a text as editors and `grep -n` count them: a form feed, for example, does not end a line."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


_ENDS = re.compile(r".*[.!?…。！？][\"'”’)\]」』）]*\s*")
"""A line that ends a sentence."""
_ENDS_WITHIN = re.compile(r"(?!\s*\|).*(?:[.!?…][\"'”’)\]]*\s|[。！？][」』）]*)\s*\S")
"""A line, but no row of a table, in which another sentence begins."""
_BEGINS_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s")
_ANNOUNCES = re.compile(r"#{1,6}\s.*|.*[:：]\s*")
"""A heading, or a line that announces what follows."""
_OVERLAP_CHARS = 400
"""The longest beginning of a sentence that two passages share."""


def split_passages(text: str, first: int = 1) -> Generator[FilePassage]:
    """Yield passages of whole lines, about 1,200 characters each; cut long lines.

    They are split at empty lines if possible, else where a sentence or an entry of a list begins. Where that is within
    a line, the next passage begins with this line again, so that one of both has the whole sentence. A heading, and a
    line that announces what follows, come with what follows. `first`: the number of the text's first line.
    """
    lines: list[str] = []
    length = start = 0
    for number, line in enumerate(split_lines(text), first):
        if len(line) > 2 * _PASSAGE_CHARS:
            if lines:
                yield _passage_at(start, lines)
                lines = []
                length = 0
            for column, piece in _split_line(line):
                yield FilePassage(f"line {number}, from column {column:,}", piece)
            continue
        is_blank = not line.strip()
        if lines:
            is_full = length + len(line) > _PASSAGE_CHARS
            is_half_full = length > _PASSAGE_CHARS // 2
            ends_here = is_blank and not _ANNOUNCES.fullmatch(lines[-1])
            if is_full or (ends_here and is_half_full):
                end, begin = (len(lines), len(lines)) if ends_here else _cut(lines, line)
                yield _passage_at(start, lines[:end])
                lines = lines[begin:]
                start += begin
                length = sum(map(len, lines)) + len(lines)
        if not lines:
            if is_blank:
                continue
            start = number
        lines.append(line)
        length += len(line) + 1
    while lines and not lines[-1].strip():
        lines.pop()
    if lines:
        yield _passage_at(start, lines)


def _cut(lines: Sequence[str], following: str) -> tuple[int, int]:
    """Return how many of the lines a full passage has, and with which of them the next one begins."""
    whole = len(lines), len(lines)
    last = len(lines) - 1
    while last and not lines[last].strip():
        last -= 1
    if last and _ANNOUNCES.fullmatch(lines[last]):
        return last, last
    if last < len(lines) - 1 or _BEGINS_ITEM.match(following):
        return whole
    left = 0
    within: tuple[int, int] | None = None
    for at in range(len(lines), 0, -1):
        if left > _PASSAGE_CHARS // 2:
            break
        if not lines[at - 1].strip() or _ENDS.fullmatch(lines[at - 1]):
            return at, at
        if at < len(lines) and _BEGINS_ITEM.match(lines[at]):
            return at, at
        left += len(lines[at - 1]) + 1
        if within is None and left <= _OVERLAP_CHARS and at > 1 and _ENDS_WITHIN.match(lines[at - 1]):
            within = len(lines), at - 1
    return within or whole


def _passage_at(first: int, lines: Sequence[str]) -> FilePassage:
    last = first + len(lines) - 1
    where = f"line {first}" if first == last else f"lines {first} to {last}"
    return FilePassage(where, "\n".join(lines))


def _split_line(line: str) -> Generator[tuple[int, str]]:
    """Yield the pieces of a long line, each with the column (from 1) at which it begins."""
    start = 0
    while start < len(line):
        end = start + _PASSAGE_CHARS
        if end < len(line):
            blank = line.rfind(" ", start, end)
            if blank > start:
                end = blank
        piece = line[start:end].strip()
        if piece:
            yield start + 1, piece
        start = end
