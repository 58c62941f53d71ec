"""Redaction: finds secrets in text and replaces them.

Seam: `Redactor` takes text before a model sees it and before it is stored. It must see whole texts: a secret that is
cut in two is not found. The time to search a text grows linearly with its length, whatever the text is.
"""
