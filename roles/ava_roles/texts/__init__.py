"""Turns the bytes of files, documents and web pages into text, for the tools that read them and for runs offline.

The seams are `reading.py`, which reads the files of a folder, and `parser_process.py`, which reads one document or
page. `store.py` keeps the texts of a data root (`kept.py`), and `passages.py` ranks them. `text_files.py` and
`encodings.py` read plain files, `web_page.py`, `page_text.py` and `markup.py` web pages, and `extracted.py` says what
the parser of a document returns. The parsers are in `formats/`, an extra.

What must hold: a parser that a stranger's file could break runs in a process of its own (`child.py`), with limits on
time and memory that also hold in C code, so the worst such a file can do is be unreadable. This room imports no tool
and no run; what cannot be read is a `ToolFailed`.
"""
