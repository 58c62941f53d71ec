"""What turns bytes into text: of files, documents and web pages, for the tools that read them and for runs offline.

`reading.py` reads the files of a folder and fills the store of their texts (`store.py`), which `kept.py` keeps for a
data root; `passages.py` ranks them. `text_files.py` and `encodings.py` read plain files, `web_page.py` and
`page_text.py` web pages, and `extracted.py` says what the parser of a document returns. The parsers are in `formats/`,
an extra.

What must hold: a parser that a stranger's file could break runs in a process of its own (`parser_process.py`), with
limits on time and memory that also hold in C code, so such a file is only one that cannot be read. This room knows no
tool and no run.
"""
