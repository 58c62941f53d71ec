"""Reads the files of a folder into the store of texts, each once, and finds the passages that match a question.

What is known of a file and still true is not read again. The rest is read by its chances, within a time: documents by
parser processes side by side. What was read is kept at once, so that a later call goes on where this one stopped.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import anyio
from anyio.from_thread import check_cancelled

from ava_extras import has_extra
from ava_roles.errors import NotThere, ParserEnded, ToolFailed
from ava_roles.sandbox.path_access import FileMark, FolderEntry
from ava_roles.sandbox.paths import Root
from ava_roles.texts.encodings import decode
from ava_roles.texts.extracted import (
    MOST_CHARS,
    Extracted,
    Format,
    Part,
    Wanted,
    WordTable,
    format_of,
    is_name_beside_document,
    row_places,
)
from ava_roles.texts.headings import HEADINGS_BYTES, headings_of
from ava_roles.texts.page_text import read_page_text
from ava_roles.texts.parser_process import ParserProcess
from ava_roles.texts.passages import (
    HEADING_CHARS,
    FileMatch,
    FilePassage,
    PassageRanking,
    Query,
    language_of,
    split_lines,
    split_passages,
)
from ava_roles.texts.phrases import count_phrase
from ava_roles.texts.places import SHARE, places_of
from ava_roles.texts.store import PASSAGES_MOST, KeptText, TextStore, is_same
from ava_roles.texts.table_rows import HeadRoom, with_heads, with_heads_for_words
from ava_roles.texts.text_files import WalkFilter, is_binary, unpacked
from ava_roles.threads import run_sync

MAX_ENTRIES = 20_000
MAX_FILE_BYTES = 10_000_000
_WHOLE_TEXT = Wanted(max_chars=MOST_CHARS)
_BATCH = 64
_BATCH_BYTES = 4_000_000
"""How many text files, and bytes of them, are read before their texts are kept."""
_HEAD_BYTES = 1_024
_TERMS_OF_EXPRESSION = 200
_HEADINGS_S = 0.5
"""Headings are looked at, before files are read, for at most this many seconds."""
_HEADINGS_SHARE = 0.05
"""And for at most this share of the time of a call."""
_XML_PAGES = (".xhtml", ".xht")
_PAGES = (".html", ".htm", *_XML_PAGES)
_CELLS = (".csv", ".tsv")
_DOCUMENT = "document"
_PACKAGES = "packages"
_DECODE = "decode"
_PAGE = "page"
_ROWS = "rows"

NOT_TEXT = "not text"
GONE = "gone meanwhile"
NOT_OPENED = "that cannot be opened"
TOO_LARGE = "too large or damaged"
NO_EXTRA = "documents, which need the extra `documents`"
UNREADABLE = "documents that cannot be read"
NOT_REACHED = "not reached in the time: ask again, or give a path"
NO_ROOM = "with more text than is kept at once: give a path"
REMOVED = "removed meanwhile from what is kept: ask again"
HEADS_LEFT_OUT = "the heads of columns in some rows, which a search shows without them: they are too many or too long"
_NO_TEXT = hashlib.sha256(NOT_TEXT.encode()).digest()
_NOTHING_LOST = (NOT_TEXT, GONE)
_SHARED_REASONS = (*_NOTHING_LOST, NOT_OPENED, TOO_LARGE, NO_EXTRA, NO_ROOM, REMOVED)
_SINGULAR = {
    NO_EXTRA: "document, which needs the extra `documents`",
    UNREADABLE: "document that cannot be read",
}
_REASONS_OF_ONE = {
    NOT_OPENED: "it cannot be opened",
    TOO_LARGE: "it is too large or damaged",
    NO_EXTRA: "it needs the extra `documents`",
    NO_ROOM: "it has more text than is kept at once; give a path",
    REMOVED: "its text was removed meanwhile; ask again",
}
_SAMPLE, _SAMPLE_CHARS = 12, 1_200
"""How many files tell the language of a folder, and how much of each that is not kept."""
_FILLERS_LEAST = 5
"""The fewest filler words that tell the language of a file."""
_LOOSE_CHARS = 50_000_000
"""The most characters of texts that are not kept, and that one call has in memory."""


# -- a file as passages --


def passages_of(text: Extracted, hide: Callable[[str], str] = str, room: HeadRoom | None = None) -> list[FilePassage]:
    """Return the passages of a file. Secrets are hidden in the whole text, before it is cut into passages.

    A part without a place of its own, unlike a page or a sheet, is named by its lines in the text that `read_file`
    shows. Rows of tables have their heads, as far as there is `room` for them in the file.
    """
    room = room or HeadRoom()
    if not any(part.place for part in text.parts):
        whole = text.text()
        if text.tables == "marks":  # no secret may stand between marks
            return list(split_passages(hide(with_heads(whole, text.tables, "", room))))
        whole = "\n".join(split_lines(hide(whole)))
        return list(split_passages(with_heads(whole, text.tables, "", room)))
    passages: list[FilePassage] = []
    first = 1
    word_tables: defaultdict[int, list[WordTable]] = defaultdict(list)
    for table in text.word_tables:
        word_tables[table.part].append(table)
    for number, part in enumerate(text.hidden(hide)):
        if text.tables == "words":
            shown = with_heads_for_words(part.text, word_tables[number], room)
        else:
            shown = with_heads(part.text, text.tables, part.place, room)
        if part.place:
            passages += _passages_of_part(Part(part.place, shown))
        else:
            passages += split_passages(shown, first)
        first += len(split_lines(Extracted((part,)).text())) + 1
    return passages


def _passages_of_part(part: Part) -> Iterator[FilePassage]:
    texts = [each.text for each in split_passages(part.text)]
    places = row_places(part.place, texts)
    for place, text in zip(places, texts, strict=True):
        count = text.count("\n") + 1
        noun = "line" if count == 1 else "lines"
        yield FilePassage(f"{place}, {count} {noun}", text)


# -- a folder --


@dataclass
class FolderTexts:
    """What one call knows of a folder's files, in the order in which they count: their texts, and why others have none.

    `loose`: texts that are not kept. `hashes`: of the files that were read now. `failed`: why a file has no text: a
    reason that many share, or for a document a sentence of its own. `missing`, `unread`: what of a file is not in its
    text, as in `KeptText`. `waiting`: files that are still to be read. `more`: there are more files than are looked at.

    Threads of workers note what they read, until the time is up (`settle`).
    """

    kept: dict[str, KeptText] = field(default_factory=dict[str, KeptText])
    loose: dict[str, Extracted] = field(default_factory=dict[str, Extracted])
    hashes: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    missing: dict[str, str] = field(default_factory=dict[str, str])
    unread: dict[str, str] = field(default_factory=dict[str, str])
    waiting: deque[FolderEntry] = field(default_factory=deque[FolderEntry])
    order: list[str] = field(default_factory=list[str])
    more: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _settled: bool = False
    _loose_chars: int = 0

    @property
    def searched(self) -> int:
        return len(self.kept) + len(self.loose)

    @property
    def unreadable(self) -> dict[str, str]:
        """The documents that cannot be read, each with a sentence why."""
        sentences: dict[str, str] = {}
        for path, why in self.failed.items():
            if why not in _SHARED_REASONS:
                sentences[path] = why.partition(";")[0]
        return sentences

    def reasons_unread(self) -> dict[str, str]:
        """Return the files that have text for somebody and were not read to their ends, each with the reason.

        Those that are still waiting are not among them. A reason ends with what to do, where anything can be done.
        """
        reasons: dict[str, str] = {}
        for path, why in self.failed.items():
            if why not in _NOTHING_LOST:
                reasons[path] = _REASONS_OF_ONE.get(why, why)
        for path, end in self.unread.items():
            reasons[path] = f"{end} not read"
        return reasons

    @property
    def is_whole(self) -> bool:
        """Whether each file was read to its end that has text for anybody, as a picture or a program has not."""
        if self.more or self.waiting or self.unread:
            return False
        return all(reason in _NOTHING_LOST for reason in self.failed.values())

    def left_out(self) -> Counter[str]:
        """Return how many files have no text, by reason, the commonest first."""
        counts: Counter[str] = Counter()
        for reason in self.failed.values():
            counts[reason if reason in _SHARED_REASONS else UNREADABLE] += 1
        in_order = Counter(dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))))
        if self.waiting:
            in_order[NOT_REACHED] = len(self.waiting)
        return in_order

    def reasons_left_out(self) -> list[str]:
        """Return how many files have no text, by reason, in words, the commonest first."""
        return [count_phrase(count, _SINGULAR.get(why, why), why) for why, count in self.left_out().items()]

    def note(self, path: str, text: KeptText) -> None:
        """Add what is kept of a file."""
        with self._lock:
            if self._settled:
                return
            if text.failed:
                self.failed[path] = text.failed
            else:
                self.kept[path] = text
                self._note_gaps(path, text.missing, text.unread)

    def note_loose(self, path: str, text: Extracted) -> None:
        """Add a text that is not kept, as long as there is room for such texts."""
        with self._lock:
            if self._settled:
                return
            self._loose_chars += sum(len(part.text) for part in text.parts)
            if self._loose_chars > _LOOSE_CHARS:
                self.failed[path] = NO_ROOM
            else:
                self.loose[path] = text
                self._note_gaps(path, *gaps_of(text))

    def note_failed(self, path: str, why: str) -> None:
        with self._lock:
            if not self._settled:
                self.failed[path] = why

    def settle(self, order: Sequence[FolderEntry]) -> None:
        """End the reading: of these files, those that nothing was noted of wait. What comes later is dropped.

        What is said of files is in the order of their names from now on, whichever worker was first.
        """
        with self._lock:
            self._settled = True
            for sentences in (self.failed, self.missing, self.unread):
                in_order = sorted(sentences.items())
                sentences.clear()
                sentences.update(in_order)
            noted = self.kept.keys() | self.loose.keys() | self.failed.keys()
            self.waiting = deque(entry for entry in order if entry.name not in noted)

    def _note_gaps(self, path: str, missing: str, unread: str) -> None:
        if missing:
            self.missing[path] = missing
        if unread:
            self.unread[path] = unread


class FolderReader:
    """Reads the files of one folder, for one call of one run."""

    def __init__(
        self,
        root: Root,
        store: TextStore,
        run_id: str = "",
        say: Callable[[str], None] = lambda _sentence: None,
        check: Callable[[], None] = check_cancelled,
        user: str = "",
    ) -> None:
        """`check` is called for each file; it raises to stop. `user`: whose share of the places it takes."""
        self._root = root
        self._check = check
        self._store = store
        self._run_id = run_id
        self._say = say
        self._folder = root.identity()
        self._user = user

    async def read(self, path: str, query: Query, within_s: float) -> FolderTexts:
        """Return the texts of a folder's files: those that were kept, and as many others as the time allows."""
        until = anyio.current_time() + within_s
        headings_s = min(_HEADINGS_S, within_s * _HEADINGS_SHARE)
        texts = await run_sync(self._look, path, query, headings_s, places=places_of(self._user))
        total = len(texts.order)
        unread = list(texts.waiting)
        workers = min(SHARE.of_search, len(unread))
        with anyio.move_on_at(until):
            async with anyio.create_task_group() as tasks:
                for _worker in range(workers):
                    tasks.start_soon(self._work, texts, total)
        texts.settle(unread)
        return texts

    async def _work(self, texts: FolderTexts, total: int) -> None:
        with ParserProcess(is_patient=True) as parser:
            while texts.waiting:
                batch = _next_batch(texts.waiting)
                await run_sync(self._read_batch, batch, texts, parser, places=places_of(self._user))
                self._say(f"Reading: {total - len(texts.waiting):,} of {total:,} files")

    def _look(self, path: str, query: Query, headings_s: float) -> FolderTexts:
        """Return what is kept of the folder's files as they are now; the others wait, best chances first.

        Their headings are looked at for at most `headings_s` seconds.
        """
        walk = WalkFilter(self._root, self._check)
        entries = list(self._root.walk(path, limit=MAX_ENTRIES, keep=walk))
        entries.sort(key=lambda entry: (entry.size > MAX_FILE_BYTES // 5, entry.name.count("/")))
        known = self._store.known(self._folder)
        texts = FolderTexts(order=[entry.name for entry in entries], more=walk.seen >= MAX_ENTRIES)
        waiting: list[FolderEntry] = []
        used_ids: list[int] = []
        for entry in entries:
            mark, entered_ns, text = known.get(entry.name, ("", 0, None))
            if text is None or not _is_unchanged(entry, mark, entered_ns):
                waiting.append(entry)
                continue
            texts.note(entry.name, text)
            used_ids.append(text.id)
        texts.waiting.extend(self._by_chance(waiting, query, headings_s))
        is_whole_folder = not path and not texts.more
        gone = known.keys() - set(texts.order)
        if gone and is_whole_folder:
            self._store.leave(self._folder, gone)
        self._store.use(used_ids, self._run_id)
        return texts

    def _by_chance(self, waiting: list[FolderEntry], query: Query, headings_s: float) -> list[FolderEntry]:
        """Return files in the order in which to read them: those with more of the question's words come first.

        Words count in a file's name, and in the headings of a text as far as the time allows.
        """
        until = time.monotonic() + headings_s
        needs_headings = len(waiting) > _BATCH  # fewer are read at once, in whatever order
        chances: dict[str, int] = {}
        for entry in waiting:
            counts = query.matches(entry.name).counts
            is_text = format_of(entry.name) is None
            if needs_headings and is_text and time.monotonic() < until:
                in_headings = query.matches("\n".join(self._headings(entry))).counts
                counts = [in_name + in_text for in_name, in_text in zip(counts, in_headings, strict=True)]
            chances[entry.name] = sum(count > 0 for count in counts)
        return sorted(waiting, key=lambda entry: -chances[entry.name])

    def _headings(self, entry: FolderEntry) -> list[str]:
        self._check()
        try:
            packed, _longer, _mark = self._root.read_marked(entry.name, HEADINGS_BYTES)
        except ToolFailed:  # said when it is read
            return []
        head, _more = unpacked(packed, HEADINGS_BYTES)
        return headings_of(head)

    def _read_batch(self, batch: Sequence[FolderEntry], texts: FolderTexts, parser: ParserProcess) -> None:
        marks_of_kept: list[tuple[str, FileMark, int, int]] = []
        try:
            for entry in batch:
                now_ns = time.time_ns()
                self._check()
                mark, text = self._read(entry, texts, parser)
                if isinstance(text, KeptText):
                    texts.note(entry.name, text)
                    if mark is not None:
                        marks_of_kept.append((entry.name, mark, now_ns, text.id))
                elif isinstance(text, Extracted):
                    texts.note_loose(entry.name, text)
                else:
                    texts.note_failed(entry.name, text)
        finally:  # a later call goes on where this one was cancelled
            self._store.enter(self._folder, marks_of_kept, self._run_id, self._root.path)

    def _read(
        self, entry: FolderEntry, texts: FolderTexts, parser: ParserProcess
    ) -> tuple[FileMark | None, KeptText | Extracted | str]:
        """Return a file's mark as it is now, and its text or why it has none."""
        name = entry.name
        try:
            may_stand_beside = is_name_beside_document(name)
            if format_of(name) is None or may_stand_beside:
                # A long binary file is known by its start; the rest is not read.
                packed, is_longer, mark = self._root.read_marked(name, _HEAD_BYTES)
                head, has_more = unpacked(packed, _HEAD_BYTES)
                is_long = is_longer or has_more
                if is_long and _is_unknown_binary(name, head):
                    return mark, self._not_text()
            if entry.size > MAX_FILE_BYTES:
                return None, TOO_LARGE
            data, more, mark = self._root.read_marked(name, MAX_FILE_BYTES)
        except NotThere:
            return None, GONE
        except ToolFailed:
            return None, NOT_OPENED
        if more:
            return None, TOO_LARGE
        if may_stand_beside and not data:
            return mark, self._not_text()
        sha256 = hashlib.sha256(data).hexdigest()
        texts.hashes[name] = sha256
        kind = format_of(name, data)
        if kind is not None and kind.extra and not has_extra("documents"):
            return None, NO_EXTRA
        return mark, read_kept(self._store, name, kind, data, sha256, parser, self._check)

    def _not_text(self) -> KeptText | str:
        """Return what is kept of all files that are not text, so that they are not looked into again."""
        kept = self._store.find(_NO_TEXT)
        if kept is None:
            kept = self._store.keep(_NO_TEXT, b"", failed=NOT_TEXT)
        return NOT_TEXT if kept is None else kept

    # -- a document --

    def document(self, name: str, kind: Format, data: bytes, mark: FileMark, read_ns: int) -> Extracted:
        """Return the text of a document, which was read at a time, and keep it. Blocks. Raises ToolFailed."""
        sha256 = hashlib.sha256(data).hexdigest()
        with ParserProcess() as parser:
            text = read_kept(self._store, name, kind, data, sha256, parser, self._check)
            if isinstance(text, KeptText):
                self._store.enter(self._folder, [(name, mark, read_ns, text.id)], self._run_id, self._root.path)
                text = self._text_of(text) or parser.read_document(kind, data, _WHOLE_TEXT)
        if isinstance(text, str):
            raise ToolFailed(text)
        return text

    def _text_of(self, text: KeptText) -> Extracted | str | None:
        """Return the text that is kept, or why there is none; None: it was removed meanwhile."""
        if text.failed:
            return text.failed
        try:
            return text_of(self._store, text)
        except KeyError:
            return None

    # -- search --

    def best(
        self, texts: FolderTexts, query: Query, max_files: int, hide: Callable[[str], str]
    ) -> tuple[list[FileMatch], PassageRanking]:
        """Return the files that match best, with secrets hidden, and the ranking of all passages. Blocks."""
        ranking = self._rank_passages(texts, query)
        files: list[FileMatch] = []
        for file in ranking.best(max_files):
            self._check()
            try:
                quote = self._quote(texts, file, query, hide)
            except ToolFailed:  # it is gone
                continue
            if quote.passages:
                files.append(quote)
        return files, ranking

    def language(self, texts: FolderTexts) -> tuple[str | None, set[str]]:
        """Return the language of most files of a sample, None if that is not clear; and all that it has. Blocks."""
        readable = [path for path in texts.order if path in texts.kept or path in texts.loose]
        step = -(-len(readable) // _SAMPLE) or 1
        sample = readable[::step]
        counts: Counter[str] = Counter()
        for path in sample:
            language = language_of(self._middle(texts, path), _FILLERS_LEAST)
            if language is not None:
                counts[language] += 1
        most = counts.most_common(1)
        if not most or most[0][1] < len(sample) / 2:
            return None, set(counts)
        return most[0][0], set(counts)

    def _middle(self, texts: FolderTexts, path: str) -> str:
        """Return some text from the middle of a file, where titles and lists of contents seldom are."""
        if path in texts.loose:
            text = texts.loose[path].text()
            return text[len(text) // 2 :][:_SAMPLE_CHARS]
        kept = texts.kept[path]
        passages = self._store.passages(kept.id, [kept.passages // 2])
        return "".join(passage.text for passage in passages)

    def _rank_passages(self, texts: FolderTexts, query: Query) -> PassageRanking:
        candidates = self._candidates(texts, query)
        ranking = PassageRanking(query)
        for path in texts.order:
            self._check()
            if path in texts.loose:
                ranking.add(path, passages_of(texts.loose[path]))
            elif path in texts.kept:
                self._rank_kept(path, texts.kept[path], query, candidates, ranking)
        return ranking

    def _rank_kept(
        self, path: str, text: KeptText, query: Query, candidates: dict[int, set[int]] | None, ranking: PassageRanking
    ) -> None:
        """Rank the passages of a kept text; those that cannot match only count towards the average length.

        `candidates` has the numbers of the passages with a word of the query by text; None means all. A text whose path
        matches is ranked as a whole.
        """
        numbers: list[int] | None = None
        if candidates is not None and not any(query.matches(path).counts):
            numbers = sorted(candidates.get(text.id, ()))
            if not numbers:
                ranking.add_others(text.passages, text.length)
                return
        passages = self._store.passages(text.id, numbers)
        length = ranking.add(path, passages)
        ranking.add_others(text.passages - len(passages), text.length - length)

    def _candidates(self, texts: FolderTexts, query: Query) -> dict[int, set[int]] | None:
        """Return the passages that may match, by text; None: any may."""
        expressions = expressions_of(query, self._store)
        if expressions is None:
            return None
        return self._store.find_passages([text.id for text in texts.kept.values()], expressions)

    def _quote(self, texts: FolderTexts, file: FileMatch, query: Query, hide: Callable[[str], str]) -> FileMatch:
        """Return a file's best passages as they are now, with secrets hidden; none if the words match only in secrets.

        Each file that is quoted is read once more, so that no quote is of something that is not there.
        """
        path = file.path
        text = self._read_now(path, texts)
        if text is None:
            return FileMatch(path, ())
        passages = passages_of(text, hide)
        sha256 = texts.hashes.get(path, "")
        if {each.text for each in file.passages} <= {each.text for each in passages}:
            return replace(file, note=text.note, sha256=sha256)
        ranking = PassageRanking(query)
        ranking.add(path, passages)
        room = len(path) + sum(len(passage.text) + HEADING_CHARS for passage in file.passages)
        best = next(iter(ranking.best(1, room)), FileMatch(path, ()))
        return replace(best, note=text.note, sha256=sha256)

    def _read_now(self, path: str, texts: FolderTexts) -> Extracted | None:
        """Return the text of a file as it is now; None: it has none."""
        if path in texts.loose:
            return texts.loose[path]
        with ParserProcess() as parser:
            _mark, text = self._read(FolderEntry(path, "file", 0), texts, parser)
        if isinstance(text, KeptText):
            texts.kept[path] = text
            text = self._text_of(text) or ""
        return None if isinstance(text, str) else text

    def note_removed(self, texts: FolderTexts) -> bool:
        """Move each text that another run removed during the search from `texts.kept` to `texts.failed`. Blocks.

        Returns True if a file still exists whose text was removed. The text of a file that is gone is no loss.
        """
        if self._store.are_kept(text.id for text in texts.kept.values()):
            return False
        removed = [path for path, text in texts.kept.items() if not self._store.are_kept([text.id])]
        has_loss = False
        for path in removed:
            del texts.kept[path]
            if self._is_there(path):
                texts.failed[path] = REMOVED
                has_loss = True
            else:
                texts.failed[path] = GONE
        return has_loss

    def _is_there(self, path: str) -> bool:
        try:
            with self._root.open_file(path):
                return True
        except NotThere:
            return False
        except ToolFailed:
            return True


def expressions_of(query: Query, store: TextStore) -> list[str] | None:
    """Return what to ask the index for, so that no passage with a word of the question is left out; None: anything."""
    terms: set[str] = set()
    for beginning in query.beginnings:
        terms.update(filter(query.asks_for, store.terms(beginning)))
    for part in query.spaced_parts():
        terms.update(store.terms_with(part))
    if query.tired:
        return None
    ordered = sorted(terms)
    expressions: list[str] = []
    for at in range(0, len(ordered), _TERMS_OF_EXPRESSION):
        some_terms = ordered[at : at + _TERMS_OF_EXPRESSION]
        expressions.append(" OR ".join(f'"{term}"' for term in some_terms))
    for pairs in query.pairs_of_parts():
        if not pairs:
            return None
        expressions.append(" AND ".join(f'"{pair}"' for pair in pairs))
    return expressions


def _is_unchanged(entry: FolderEntry, mark: str, entered_ns: int) -> bool:
    """Tell whether a file is as it was when it was read."""
    return entry.mark is not None and is_same(entry.mark, mark, entered_ns)


def _is_unknown_binary(name: str, head: bytes) -> bool:
    """Tell whether a file begins as a binary one, and not as a kind of document that can be read."""
    return is_binary(head) and format_of(name, head) is None


def _next_batch(waiting: deque[FolderEntry]) -> list[FolderEntry]:
    """Take the next files: one document, or as many texts as are kept at once."""
    batch: list[FolderEntry] = []
    size = 0
    while waiting and len(batch) < _BATCH and size < _BATCH_BYTES:
        if batch and format_of(waiting[0].name) is not None:
            break
        entry = waiting.popleft()
        batch.append(entry)
        size += entry.size
        if format_of(entry.name) is not None:
            break
    return batch


# -- a file --


def read_kept(
    store: TextStore,
    name: str,
    kind: Format | None,
    data: bytes,
    sha256: str,
    parser: ParserProcess,
    check: Callable[[], None],
) -> KeptText | Extracted | str:
    """Return the kept text of a file, which is read now if it is not kept; `sha256` is of its data.

    What may not be kept is returned itself: a text, or why there is none. `check` raises if the call was cancelled.
    """
    reader = TextReader.of(name, kind)
    digest = reader.digest(sha256)
    kept = store.find(digest)
    if kept is not None:
        return kept
    with store.making(digest, check):
        earlier = store.find(digest) or store.ended(digest)
        if earlier:
            return earlier
        return _keep(store, digest, reader, data, parser, check)


def _keep(
    store: TextStore,
    digest: bytes,
    reader: TextReader,
    data: bytes,
    parser: ParserProcess,
    check: Callable[[], None],
) -> KeptText | Extracted | str:
    """Read a file and keep its text; return what was kept.

    Returns the text alone if it is encrypted or too long to be kept, and the reason why there is none as a str.
    """
    failure = ""
    try:
        text = reader.read(data, parser)
    except ParserEnded as error:
        check()  # which has ended it, too
        store.note_ended(digest, str(error))
        return str(error)
    except ToolFailed as error:
        text = Extracted(())
        failure = str(error)
    room = HeadRoom()
    passages = passages_of(text, room=room)
    if room.is_short:
        text = replace(text, missing=(*text.missing, HEADS_LEFT_OUT))
    if text.encrypted or len(passages) > PASSAGES_MOST:
        return text
    missing, unread = gaps_of(text)
    kept = store.keep(digest, _body(text), passages, failed=failure, missing=missing, unread=unread)
    if kept is not None:
        return kept
    return failure or text


def text_of(store: TextStore, text: KeptText) -> Extracted:
    """Return the whole text that is kept. Raises KeyError if it was removed meanwhile."""
    return Extracted.of(json.loads(store.body(text.id).decode("utf-8", "surrogatepass")))


def gaps_of(text: Extracted) -> tuple[str, str]:
    """Return what is in a file and not in its text, and which end of it was not read."""
    return "; ".join(text.missing), text.end


def _body(text: Extracted) -> bytes:
    return json.dumps(asdict(text), ensure_ascii=False).encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class TextReader:
    """What makes the text of a file, with every argument on which the text depends: both are in the key of the text.

    `kind`: of a document; None for a page or another text. `arguments`: those of each step that reads the file's
    bytes: of `decode`, of `read_page_text`, of a document's parser (`Wanted`), how the text writes tables, and whether
    the packages of documents are here.
    """

    kind: Format | None
    arguments: Mapping[str, Mapping[str, object]]

    @classmethod
    def of(cls, name: str, kind: Format | None) -> TextReader:
        """Return what reads a file of this name, and of this kind of document."""
        if kind is not None:
            has_packages = not kind.extra or has_extra("documents")
            return cls(kind, {_DOCUMENT: asdict(_WHOLE_TEXT), _PACKAGES: {"are_here": has_packages}})
        decode_arguments = {"label": "", "cut": False}
        suffix = PurePosixPath(name.lower().removesuffix(".gz")).suffix
        if suffix not in _PAGES:  # Markdown stays as it is, word for word
            return cls(None, {_DECODE: decode_arguments, _ROWS: {"tables": "commas" if suffix in _CELLS else ""}})
        page_arguments = {"url": "", "keep_lines": True, "is_xml": suffix in _XML_PAGES, "mark_tables": True}
        return cls(None, {_DECODE: decode_arguments, _PAGE: page_arguments})

    def digest(self, sha256: str) -> bytes:
        """Return the key of the text of a file whose data has this hash."""
        kind_name = "" if self.kind is None else self.kind.name
        reader = json.dumps([kind_name, self.arguments], sort_keys=True)
        return hashlib.sha256(f"{reader}\0{sha256}".encode()).digest()

    def read(self, data: bytes, parser: ParserProcess) -> Extracted:
        """Return the text of a file's data. Raises ToolFailed if it has none."""
        if self.kind is not None:
            return self._read_document(self.kind, data, parser)
        data, more = unpacked(data, MAX_FILE_BYTES)
        if more:
            raise ToolFailed(TOO_LARGE)
        decode_arguments: dict[str, Any] = dict(self.arguments[_DECODE])
        decoded = decode(data, **decode_arguments)
        if decoded is None:
            raise ToolFailed(NOT_TEXT)
        if _PAGE not in self.arguments:
            row_arguments: dict[str, Any] = dict(self.arguments[_ROWS])
            return Extracted((Part("", decoded.text),), note=decoded.note, **row_arguments)
        page_arguments: dict[str, Any] = dict(self.arguments[_PAGE])
        page = read_page_text(decoded.text, **page_arguments)
        missing = page.missing + page.unseen
        parts = (Part("", page.text),)
        return Extracted(parts, page.title or None, missing=missing, note=decoded.note, tables="marks")

    def _read_document(self, kind: Format, data: bytes, parser: ParserProcess) -> Extracted:
        wanted: dict[str, Any] = dict(self.arguments[_DOCUMENT])
        document = parser.read_document(kind, data, Wanted(**wanted))
        if document.missing and not any(part.text.strip() for part in document.parts):
            raise ToolFailed(f"this {kind.name} has no text: {', '.join(document.missing)}")
        return replace(document, tables=kind.tables)
