"""The words of a question: which ones count, and where a text has them in any form.

Words are compared by their stems (Snowball), in the language that the question's filler words tell; English forms that
have other stems, by their first one. Chinese, Japanese and Thai have no spaces: ICU (extra `languages`) cuts a question
into words, or without it each two characters count as one. They are looked for anywhere in a text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

from ava_extras import has_extra, load

_MAX_WORDS = 30
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3005"
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_UNSPACED_OR_NOT = re.compile(rf"[{_UNSPACED}]+|[^{_UNSPACED}\s]+")
_HIRAGANA = re.compile(r"[\u3040-\u309f\u30fc]+")
_BROKEN = re.compile(f"(?<=[{_UNSPACED}])\\s+(?=[{_UNSPACED}])")
"""White space inside text without spaces: lines are broken anywhere there."""
_PARTICLE = re.compile(r"(?<=[가-힣]{2})(?:에서|으로|까지|부터|에게|은|는|이|가|을|를|에|의|로|와|과|도)$")
_ENDING = re.compile(_PARTICLE.pattern + r"|(?<=[\u4e00-\u9fff]{2})[\u3040-\u309f]+$")
_LANGUAGES_MOST = 3
_NEAR_WORDS = 3
_BEGINNING = 3
"""Letters that a word and its stem have in common."""
_MAX_KNOWN = 1_000_000
_MAX_STEMMED, _MAX_STEMMED_CHARS = 10_000, 40
"""A hostile text has many words that begin like one of the question: no more of them than that are stemmed."""
_SCRIPTS = {"russian": re.compile("[а-яё]"), "greek": re.compile("[α-ω]"), "korean": re.compile("[가-힣]")}


@cache
def filler_words() -> frozenset[str]:
    """Return the filler words of all languages."""
    return frozenset[str]().union(*_fillers().values())


@cache
def _fillers() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for line in files("ava_roles").joinpath("filler_words.txt").read_text(encoding="utf-8").splitlines():
        language, colon, words = line.partition(":")
        if colon and not line.startswith("#"):
            found.setdefault(language, set()).update(words.split())
    return {language: frozenset(words) for language, words in found.items()}


@cache
def _irregular() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the first form of each English word whose forms have several stems, and all forms by the first's stem."""
    text = files("ava_roles").joinpath("irregular_words.txt").read_text(encoding="utf-8")
    lines = " ".join(line for line in text.splitlines() if not line.startswith("#"))
    groups = [forms.split() for forms in lines.split(",")]
    stem = _snowball().stemmer("english").stemWord
    return {form: forms[0] for forms in groups for form in forms}, {stem(forms[0]): forms for forms in groups}


class Matches(NamedTuple):
    """Where a text has a question's words: how often each, and (`pairs`) how often the next one closely follows."""

    counts: list[int]
    pairs: list[int]
    length: int


class Query:
    """The words of a question that count, at most 30, in lower case; filler words only where there are no others.

    `telling`: they are more than filler words.
    """

    def __init__(self, text: str) -> None:
        written = list(dict.fromkeys(_split(_fold_width(text).lower())))
        languages = _languages(written)
        fillers = frozenset[str]().union(*(_fillers()[language] for language in languages))
        counting = [word for word in written if word not in fillers and _is_telling(word)]
        self.telling = bool(counting)
        counting = counting or written
        self._stems = _Stems(_stemmers(languages))
        self._parts: dict[int, str] = {}
        words: list[str] = []
        for word in counting:
            if len(words) < _MAX_WORDS and (len(word) > 1 or len(counting) == 1):
                if _UNSPACED_RUN.search(word) or _PARTICLE.search(word):
                    self._parts[len(words)] = _ENDING.sub("", word)
                    words.append(word)
                elif self._stems.learn(word, len(words)):
                    words.append(word)
        self.words = tuple(words)

    def matches(self, text: str) -> Matches:
        """Return where a text has the words, in any form."""
        text = _fold_width(text).lower()
        counts, pairs = [0] * len(self.words), [0] * len(self.words)
        tokens = _WORD.findall(text)
        found = [(at, number) for at, number in enumerate(map(self._stems.__getitem__, tokens)) if number >= 0]
        before, last = -1, 0
        for at, number in found:
            counts[number] += 1
            pairs[before] += number == before + 1 and before >= 0 and at - last <= _NEAR_WORDS
            before, last = number, at
        if text.isascii():
            return Matches(counts, pairs, len(tokens))
        if self._parts:
            joined = _BROKEN.sub("", text)
            for number, part in self._parts.items():
                counts[number] = joined.count(part)
        # A word in these scripts has about two characters; a run of them is one token.
        return Matches(counts, pairs, len(tokens) + sum(len(run) // 2 for run in _UNSPACED_RUN.findall(text)))

    def found_in(self, text: str) -> list[str]:
        """Return the words that a text has, each as it stands there, in lower case and in the question's order."""
        text = _fold_width(text).lower()
        joined = _BROKEN.sub("", text) if self._parts else ""
        forms = {number: part for number, part in self._parts.items() if part in joined}
        for token in _WORD.findall(text):
            number = self._stems[token]
            if number >= 0:
                forms.setdefault(number, token)
        return [forms[number] for number in sorted(forms)]


class _Stems(dict[str, int]):
    """The number of the word that a token is a form of; -1 for none. It stems only what begins like a word."""

    def __init__(self, stemmers: Iterable[Callable[[str], str]]) -> None:
        self._stemmers = tuple(stemmers)
        self._numbers: dict[str, int] = {}
        self._beginnings: set[str] = set()
        self._left = _MAX_STEMMED

    def learn(self, word: str, number: int) -> bool:
        """Add a word; False if it is a form of another one."""
        keys = self._keys(word)
        if not keys.isdisjoint(self._numbers):
            return False
        self._numbers.update(dict.fromkeys(keys, number))
        _, irregular = _irregular()
        self._beginnings.update(form[:_BEGINNING] for key in keys for form in (key, *irregular.get(key, ())))
        return True

    def __missing__(self, token: str) -> int:
        number = -1
        begins = _without_marks(token[:_BEGINNING])[:_BEGINNING]
        if any(begins[:length] in self._beginnings for length in range(_BEGINNING, 0, -1)):
            number = next((self._numbers[key] for key in self._keys(token) if key in self._numbers), -1)
        if len(self) < _MAX_KNOWN:
            self[token] = number
        return number

    def _keys(self, word: str) -> set[str]:
        if not self._left or len(word) > _MAX_STEMMED_CHARS or not word.isalpha():
            return {_without_marks(word)}
        self._left = max(self._left - len(self._stemmers), 0)
        return {_without_marks(stem(word)) for stem in self._stemmers}


def _split(text: str) -> Iterable[str]:
    for token in _WORD.findall(text):
        if _UNSPACED_RUN.search(token) is None:
            yield token
            continue
        if has_extra("languages"):
            breaker: Iterable[str] = load("languages").WordBreaker(token, "ja" if _HIRAGANA.search(text) else "zh")
            yield from (word for word in breaker if word.isalnum())
        else:
            yield from _pairs(token)


def _pairs(token: str) -> Iterable[str]:
    """Yield each two neighbours of the characters without spaces, as search engines without dictionaries do.

    Filler words and hiragana, which ends a Japanese word, are left out first.
    """
    for part in _UNSPACED_OR_NOT.findall(_unspaced_fillers().sub(" ", token)):
        if _UNSPACED_RUN.match(part) is None or len(part) == 1:
            yield part
        else:
            yield from map("".join, pairwise(part))


@cache
def _unspaced_fillers() -> re.Pattern[str]:
    fillers = sorted((word for word in filler_words() if _UNSPACED_RUN.match(word)), key=len, reverse=True)
    return re.compile("|".join((*fillers, _HIRAGANA.pattern)))


def _is_telling(word: str) -> bool:
    """Tell whether a word can mean something: one Chinese character, or hiragana alone, hardly does."""
    return _UNSPACED_RUN.search(word) is None or (len(word) > 1 and _HIRAGANA.fullmatch(word) is None)


def _languages(words: Iterable[str]) -> list[str]:
    """Return the languages whose filler words a question has most of; without any, those that it may well be in."""
    found = {language: sum(word in fillers for word in words) for language, fillers in _fillers().items()}
    most = max(found.values())
    if most:
        return [language for language, count in found.items() if count == most][:_LANGUAGES_MOST]
    scripts = [language for language, letters in _SCRIPTS.items() if any(letters.search(word) for word in words)]
    return scripts or ["english", "german", "french", "spanish"]


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


def _fold_width(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _without_marks(word: str) -> str:
    """Return a word without accents and the like, which people leave out."""
    if word.isascii():
        return word
    return "".join(char for char in unicodedata.normalize("NFKD", word.casefold()) if not unicodedata.combining(char))
