"""Reads the files of a folder into the store of texts, each once, and finds the passages that match a question.

What is known of a file and still true is not read again. The rest is read by its chances, within a time: documents by
parser processes side by side. What was read is kept at once, so that a later call goes on where this one stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath

import anyio
from anyio.from_thread import check_cancelled

from ava_extras import has_extra
from ava_roles.encodings import decode
from ava_roles.errors import ParserEnded, ToolFailed
from ava_roles.passages import (
    HEADING_CHARS,
    FileMatch,
    FilePassage,
    PassageRanking,
    Query,
    passage_length,
    split_lines,
    split_passages,
)
from ava_roles.sandbox.path_access import FileMark, FolderEntry
from ava_roles.sandbox.paths import Root
from ava_roles.texts.store import PASSAGES_MOST, KeptText, TextStore, is_same
from ava_roles.threads import run_sync
from ava_roles.tools.extracted import MOST_CHARS, Extracted, Format, Part, Wanted, format_of, row_places
from ava_roles.tools.page_text import read_page_text
from ava_roles.tools.parser_process import ParserProcess
from ava_roles.tools.text_files import WalkFilter, is_binary, read_unpacked, unpacked

MAX_ENTRIES = 20_000
MAX_FILE_BYTES = 10_000_000
_WANTED = Wanted(max_chars=MOST_CHARS)
_BATCH = 64
_BATCH_BYTES = 4_000_000
"""How many text files, and bytes of them, are read before their texts are kept."""
_PARSERS_MOST = 4
_HEAD_BYTES = 1_024
_PAGES = (".html", ".htm", ".xhtml", ".xht")

NOT_TEXT, TOO_LARGE = "not text, or unreadable", "too large or damaged"
NO_EXTRA = "documents, which need the extra `documents`"
UNREADABLE = "documents that cannot be read"
NOT_REACHED = "not reached in the time: ask again, or give a path"
_SHARED_REASONS = (NOT_TEXT, TOO_LARGE, NO_EXTRA)


# -- a file as passages --


def passages_of(text: Extracted, hide: Callable[[str], str] = str) -> list[FilePassage]:
    """Return the passages of a file with secrets hidden: whole texts are hidden, before they are cut.

    What has no place of its own, such as a page, is named by its lines in the text that `read_file` shows.
    """
    if not any(part.place for part in text.parts):
        return list(split_passages(hide(text.text())))
    passages: list[FilePassage] = []
    first = 1
    for part in text.hidden(hide):
        passages += _passages_of_part(part) if part.place else split_passages(part.text, first)
        first += len(split_lines(Extracted((part,)).text())) + 1
    return passages


def _passages_of_part(part: Part) -> Iterator[FilePassage]:
    texts = [each.text for each in split_passages(part.text)]
    for place, text in zip(row_places(part.place, texts), texts, strict=True):
        count = text.count("\n") + 1
        yield FilePassage(f"{place}, {count} line{'s' * (count > 1)}", text)


# -- a folder --


@dataclass
class FolderTexts:
    """What one call knows of a folder's files, in the order in which they count: their texts, and why others have none.

    `loose`: texts that are not kept. `hashes`: of the files that were read now. `failed`: why a file has no text: a
    reason that many share, or for a document a sentence of its own. `missing`, `unread`: what of a file is not in its
    text, as in `KeptText`. `waiting`: files that are still to be read. `more`: there are more files than are looked at.
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

    @property
    def searched(self) -> int:
        return len(self.kept) + len(self.loose)

    @property
    def unreadable(self) -> dict[str, str]:
        """The documents that cannot be read, each with a sentence why."""
        return {path: why.partition(";")[0] for path, why in self.failed.items() if why not in _SHARED_REASONS}

    def left_out(self) -> Counter[str]:
        """Return how many files have no text, by reason."""
        found = Counter(why if why in _SHARED_REASONS else UNREADABLE for why in self.failed.values())
        if self.waiting:
            found[NOT_REACHED] = len(self.waiting)
        return found

    def note(self, path: str, text: KeptText) -> None:
        """Add what is kept of a file."""
        if text.failed:
            self.failed[path] = text.failed
            return
        self.kept[path] = text
        self._note_gaps(path, text.missing, text.unread)

    def note_loose(self, path: str, text: Extracted) -> None:
        """Add a text that is not kept."""
        self.loose[path] = text
        self._note_gaps(path, *gaps_of(text))

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
    ) -> None:
        """`check` is called for each file; it raises to stop."""
        self._root = root
        self._check = check
        self._store = store
        self._run_id = run_id
        self._say = say
        self._folder = root.identity()

    async def read(self, path: str, query: Query, within_s: float) -> FolderTexts:
        """Return the texts of a folder's files: those that were kept, and as many others as the time allows."""
        until = anyio.current_time() + within_s
        found = await run_sync(self._look, path, query)
        total = len(found.order)
        with anyio.move_on_at(until):
            async with anyio.create_task_group() as tasks:
                for _worker in range(min(_PARSERS_MOST, os.cpu_count() or 1, len(found.waiting))):
                    tasks.start_soon(self._work, found, total)
        return found

    async def _work(self, found: FolderTexts, total: int) -> None:
        with ParserProcess() as parser:
            while found.waiting:
                batch = _next_batch(found.waiting)
                try:
                    await run_sync(self._read_batch, batch, found, parser)
                except BaseException:
                    found.waiting.extendleft(reversed(batch))  # not read
                    raise
                self._say(f"Reading: {total - len(found.waiting):,} of {total:,} files")

    def _look(self, path: str, query: Query) -> FolderTexts:
        """Return what is kept of the folder's files as they are now; the others wait, best chances first."""
        walk = WalkFilter(self._root, self._check)
        entries = list(self._root.walk(path, limit=MAX_ENTRIES, keep=walk))
        entries.sort(key=lambda entry: (entry.size > MAX_FILE_BYTES // 5, entry.name.count("/")))
        known = self._store.known(self._folder)
        found = FolderTexts(order=[entry.name for entry in entries], more=walk.asked >= MAX_ENTRIES)
        waiting: list[FolderEntry] = []
        for entry in entries:
            mark, entered_ns, text = known.get(entry.name, ("", 0, None))
            if text is not None and entry.mark is not None and is_same(entry.mark, mark, entered_ns):
                found.note(entry.name, text)
            else:
                waiting.append(entry)
        waiting.sort(key=lambda entry: not any(query.matches(entry.name).counts))
        found.waiting.extend(waiting)
        if not path:
            gone = known.keys() - set(found.order)
            if gone:
                self._store.leave(self._folder, gone)
        self._store.use([text.id for text in found.kept.values()], self._run_id)
        return found

    def _read_batch(self, batch: Sequence[FolderEntry], found: FolderTexts, parser: ParserProcess) -> None:
        entered: list[tuple[str, FileMark, int, int]] = []
        for entry in batch:
            self._check()
            now_ns = time.time_ns()
            try:
                mark, text = self._read(entry.name, found, parser)
            except ToolFailed:  # it is gone, or may not be read
                found.failed[entry.name] = NOT_TEXT
                continue
            if text is not None:
                found.note(entry.name, text)
                entered.append((entry.name, mark, now_ns, text.id))
        self._store.enter(self._folder, entered, self._run_id)

    def _read(self, name: str, found: FolderTexts, parser: ParserProcess) -> tuple[FileMark, KeptText | None]:
        """Return what a file is and its kept text; None where nothing of it is kept, as noted in `found`."""
        if format_of(name) is None:
            head, longer = read_unpacked(self._root, name, _HEAD_BYTES)
            if longer and is_binary(head) and format_of(name, head) is None:
                raise ToolFailed(NOT_TEXT)
        data, more, mark = self._root.read_marked(name, MAX_FILE_BYTES)
        if more:
            found.failed[name] = TOO_LARGE
            return mark, None
        sha256 = found.hashes[name] = hashlib.sha256(data).hexdigest()
        kind = format_of(name, data)
        if kind is not None and kind.extra and not has_extra("documents"):
            found.failed[name] = NO_EXTRA
            return mark, None
        read = read_kept(self._store, name, kind, data, sha256, parser)
        if isinstance(read, KeptText):
            return mark, read
        if isinstance(read, str):
            found.failed[name] = read
        else:
            found.note_loose(name, read)
        return mark, None

    # -- a document --

    def document(self, name: str, kind: Format, data: bytes, mark: FileMark, read_ns: int) -> Extracted:
        """Return the text of a document, which was read at a time, and keep it. Blocks. Raises ToolFailed."""
        sha256 = hashlib.sha256(data).hexdigest()
        with ParserProcess() as parser:
            read = read_kept(self._store, name, kind, data, sha256, parser)
        if isinstance(read, KeptText):
            self._store.enter(self._folder, [(name, mark, read_ns, read.id)], self._run_id)
            if not read.failed:
                return text_of(self._store, read)
        if isinstance(read, Extracted):
            return read
        raise ToolFailed(read if isinstance(read, str) else read.failed)

    # -- search --

    def best(
        self, found: FolderTexts, query: Query, max_files: int, hide: Callable[[str], str]
    ) -> tuple[list[FileMatch], PassageRanking]:
        """Return the files that match best, with secrets hidden, and the ranking of all passages. Blocks."""
        ranking = self._ranking(found, query)
        files: list[FileMatch] = []
        for file in ranking.best(max_files):
            self._check()
            try:
                shown = self._quoted(found, file, query, hide)
            except ToolFailed:  # it is gone
                shown = FileMatch(file.path, ())
            if shown.passages:
                files.append(shown)
        return files, ranking

    def _ranking(self, found: FolderTexts, query: Query) -> PassageRanking:
        matching = self._matching(found, query)
        ranking = PassageRanking(query)
        for path in found.order:
            self._check()
            if (loose := found.loose.get(path)) is not None:
                ranking.add(path, passages_of(loose))
            elif (text := found.kept.get(path)) is not None:
                self._rank(path, text, query, matching, ranking)
        return ranking

    def _rank(
        self, path: str, text: KeptText, query: Query, matching: dict[int, set[int]] | None, ranking: PassageRanking
    ) -> None:
        everything = matching is None or any(query.matches(path).counts)
        numbers = None if everything else sorted((matching or {}).get(text.id, ()))
        if numbers == []:
            ranking.add_others(text.passages, text.length)
            return
        picked = self._store.passages(text.id, numbers)
        ranking.add(path, picked)
        length = sum(passage_length(passage.text) for passage in picked)
        ranking.add_others(text.passages - len(picked), text.length - length)

    def _matching(self, found: FolderTexts, query: Query) -> dict[int, set[int]] | None:
        """Return the passages that may match, by text; None: any may."""
        expressions = expressions_of(query, self._store)
        if expressions is None:
            return None
        return self._store.find_passages([text.id for text in found.kept.values()], expressions)

    def _quoted(self, found: FolderTexts, file: FileMatch, query: Query, hide: Callable[[str], str]) -> FileMatch:
        """Return a file's best passages as they are now, with secrets hidden; none if the words match only in secrets.

        Each file that is quoted is read once more, so that no quote is of something that is not there.
        """
        path = file.path
        read = self._now(path, found)
        if read is None:
            return FileMatch(path, ())
        passages = passages_of(read, hide)
        sha256 = found.hashes.get(path, "")
        if {each.text for each in file.passages} <= {each.text for each in passages}:
            return replace(file, note=read.note, sha256=sha256)
        ranking = PassageRanking(query)
        ranking.add(path, passages)
        room = len(path) + sum(len(passage.text) + HEADING_CHARS for passage in file.passages)
        best = next(iter(ranking.best(1, room)), FileMatch(path, ()))
        return replace(best, note=read.note, sha256=sha256)

    def _now(self, path: str, found: FolderTexts) -> Extracted | None:
        if path in found.loose:
            return found.loose[path]
        with ParserProcess() as parser:
            _mark, text = self._read(path, found, parser)
        if text is None:
            return found.loose.get(path)
        return text_of(self._store, text) if not text.failed else None


def expressions_of(query: Query, store: TextStore) -> list[str] | None:
    """Return what to ask the index for, so that no passage with a word of the question is left out; None: anything."""
    terms = {term for beginning in query.beginnings for term in store.terms(beginning) if query.asks_for(term)}
    for part in query.spaced_parts():
        terms.update(store.terms_with(part))
    if query.tired:
        return None
    ordered = sorted(terms)
    expressions = [" OR ".join(f'"{term}"' for term in ordered[at : at + 200]) for at in range(0, len(ordered), 200)]
    for pairs in query.pairs_of_parts():
        if not pairs:
            return None
        expressions.append(" AND ".join(f'"{pair}"' for pair in pairs))
    return expressions


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
    store: TextStore, name: str, kind: Format | None, data: bytes, sha256: str, parser: ParserProcess
) -> KeptText | Extracted | str:
    """Return the kept text of a file, which is read now if it is not kept; `sha256` is of its data.

    What may not be kept is returned itself: a text, or why there is none.
    """
    digest = hashlib.sha256(f"{_reader_of(name, kind)}\0{sha256}".encode()).digest()
    if (known := store.find(digest)) is not None:
        return known
    try:
        read = _read_text(name, kind, data, parser)
    except ParserEnded as failed:
        return str(failed)
    except ToolFailed as failed:
        return store.keep(digest, _body(Extracted(())), failed=str(failed))
    passages = passages_of(read)
    if read.encrypted or len(passages) > PASSAGES_MOST:
        return read
    missing, unread = gaps_of(read)
    return store.keep(digest, _body(read), passages, missing=missing, unread=unread)


def text_of(store: TextStore, text: KeptText) -> Extracted:
    """Return the whole text that is kept. Raises KeyError: it was removed meanwhile."""
    return Extracted.of(json.loads(store.body(text.id).decode("utf-8", "surrogatepass")))


def gaps_of(text: Extracted) -> tuple[str, str]:
    """Return what is in a file and not in its text, and which end of it was not read."""
    return "; ".join(text.missing), text.end


def _body(text: Extracted) -> bytes:
    return json.dumps(asdict(text), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _reader_of(name: str, kind: Format | None) -> str:
    """Return what reads a file: the same bytes have another text as a page than as plain text."""
    return kind.name if kind is not None else "page" if _is_page(name) else "text"


def _is_page(name: str) -> bool:
    return PurePosixPath(name.removesuffix(".gz")).suffix.lower() in _PAGES


def _read_text(name: str, kind: Format | None, data: bytes, parser: ParserProcess) -> Extracted:
    """Return the text of a file. Raises ToolFailed: it has none."""
    if kind is not None:
        found = parser.read_document(kind, data, _WANTED)
        if found.missing and not any(part.text.strip() for part in found.parts):
            raise ToolFailed(f"this {kind.name} has no text: {', '.join(found.missing)}")
        return found
    data, more = unpacked(data, MAX_FILE_BYTES)
    if more:
        raise ToolFailed(TOO_LARGE)
    decoded = decode(data)
    if decoded is None:
        raise ToolFailed(NOT_TEXT)
    if not _is_page(name):
        return Extracted((Part("", decoded.text),), note=decoded.note)
    page = read_page_text(decoded.text, keep_lines=True, is_xml=".xht" in name.lower())
    return Extracted((Part("", page.text),), page.title or None, missing=page.missing + page.unseen, note=decoded.note)
