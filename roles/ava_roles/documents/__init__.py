"""Documents (extra `documents`): text of PDF, Word and Excel files, and the articles of web pages.

Only `tools/parser_process.py` loads this, in a process of its own for each file. Without it, `read_file` says what is
missing, and of a web page remain its words, without headings and links.
"""
