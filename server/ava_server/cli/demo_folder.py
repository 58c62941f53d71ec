"""What the demo reads: a folder of the user's, or the documentation that the package ships; and what to ask about it.

The question is made of the folder's own most telling words, so that it is an honest one for any folder.
"""

from __future__ import annotations

import keyword
import math
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path, PurePosixPath

from ava_server.core.data_root import home_folder
from ava_server.core.errors import AvaError, BadInput

FILES_MOST = 400
CHARS_MOST = 60_000
"""Characters of one file that count."""
LOOK_S = 2.0
DOCUMENTS_MOST = 5
WORDS = 3
DOCS_QUESTION = "Who approves a subagent, what may it cost at most, and what happens when a cap is reached?"
"""What the demo asks the shipped documentation."""
_HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
_CODE = frozenset(keyword.kwlist) | frozenset(
    ["args", "const", "function", "null", "self", "string", "this", "true", "void"]
)
_WORD = re.compile(r"[^\W\d_]{4,24}")


def shipped_docs() -> Path:
    """Return the documentation's folder: in the installed package, or beside it in a checkout.

    Raises:
        AvaError: This installation has none.
    """
    package = Path(str(files("ava_server")))
    for folder in (package / "_docs", package.parents[1] / "docs"):
        if (folder / "index.md").is_file():
            return folder
    raise AvaError("This installation has no documentation to read; name a folder: ava demo FOLDER")


def copied_docs(beside: Path) -> Path:
    """Copy the documentation into a folder, and return the copy.

    An installed package often lies in a hidden folder of a home, where no subagent may read.
    """
    return Path(shutil.copytree(shipped_docs(), beside / "docs"))


def checked_folder(folder: Path) -> Path:
    """Return a folder that the user named, as an absolute path.

    Raises:
        BadInput: It is missing, no folder, cannot be read, or is one that no subagent may read.
    """
    try:
        folder = folder.expanduser()
    except RuntimeError:
        raise BadInput(f"FOLDER: {folder} stands for no home here; give a path from the root on") from None
    folder = folder.absolute()
    if why := _never_read(folder):
        raise BadInput(f"FOLDER: {why}")
    try:
        if not folder.exists():
            raise BadInput(f"FOLDER: {folder} does not exist; name a folder with text in it, or none at all")
        if not folder.is_dir():
            raise BadInput(f"FOLDER: {folder} is no folder; name the one that it is in")
        next(folder.iterdir(), None)
    except OSError as error:
        raise BadInput(f"FOLDER: {folder} cannot be read: {error.strerror}; name another one") from None
    return folder


def _never_read(folder: Path) -> str:
    """Return why no subagent may read a folder that people name first: everything, and their home."""
    place = folder.resolve()
    if place.parent == place:
        return f"{folder} is the whole file system, which is never read; name a folder in it"
    if place == home_folder().resolve():
        return f"a home folder itself is never read; name one inside {folder}"
    return ""


def question_about(folder: Path) -> str:
    """Return a question to the folder, made of its most telling words. Blocks for 2 s at most.

    Raises:
        BadInput: There is no text in it.
    """
    words = telling_words(_texts(folder))
    if not words:
        raise BadInput(f"FOLDER: there is no text to read in {folder}; name a folder with text files in it")
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"What do these files say about {listed}?"


def telling_words(texts: Iterable[str]) -> list[str]:
    """Return the words that tell most about some texts: often there, and not in all of them (tf-idf).

    Words of headings count ten times.
    """
    from ava_server.models.offline import stopwords

    weights: dict[str, float] = defaultdict(float)
    spread: Counter[str] = Counter()
    count = 0
    for text in texts:
        found = Counter(word.lower() for word in _WORD.findall(text))
        for heading in _HEADING.findall(text):
            for word in _WORD.findall(heading):
                found[word.lower()] += 9
        count += bool(found)
        for word, times in found.items():
            weights[word] += 1 + math.log(times)
            spread[word] += 1
    scored = {word: weight * math.log((count + 1) / spread[word]) for word, weight in weights.items()}
    passed_over = stopwords() | _CODE
    chosen: list[str] = []
    for word in sorted(scored, key=lambda word: (-scored[word], word)):
        if word in passed_over or any(word[:5] == other[:5] for other in chosen):
            continue  # it says nothing, or is another form of one that is there
        chosen.append(word)
        if len(chosen) == WORDS:
            break
    return chosen


def _texts(folder: Path) -> Iterator[str]:
    """Yield the texts of a folder's files, of those that the subagent's search would look at."""
    from ava_roles.errors import RolesError, ToolFailed
    from ava_roles.sandbox.paths import Root
    from ava_roles.tools import documents
    from ava_roles.tools.text_files import WalkFilter, decode_text

    try:
        root = Root.open(folder)
    except (OSError, RolesError) as error:
        raise BadInput(f"FOLDER: {folder} cannot be opened: {error}; name another one") from None
    until = time.monotonic() + LOOK_S
    read_documents = 0
    try:
        for number, entry in enumerate(root.walk("", limit=FILES_MOST * 10, keep=WalkFilter(root))):
            if number >= FILES_MOST or time.monotonic() > until:
                return
            document = PurePosixPath(entry.name).suffix.lower() in (".pdf", ".docx")
            read_documents += document
            try:
                if not document:
                    data, cut = root.read(entry.name, CHARS_MOST)
                    yield decode_text(data, cut=cut) or ""
                elif read_documents <= DOCUMENTS_MOST:
                    data, _ = root.read(entry.name, 10_000_000)
                    pages = documents.read_pdf(data, count=10).pages if documents.is_pdf(data) else ()
                    yield " ".join(text for _, text in pages) if pages else documents.read_docx(data)
            except ToolFailed:
                continue
    finally:
        root.close()
