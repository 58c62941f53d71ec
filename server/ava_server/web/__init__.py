"""The pages that a person opens in a browser: to see runs, costs and the log, and to decide.

Seam: `asgi.Pages` is the ASGI application; the HTTP server gives it the requests that carry no bearer token, and
`site.Site` says whom a page is for. A page is plain HTML that works without scripts; when the stream reports a change,
a script fetches the part `#live` again. A form that a person fills in is outside such parts. The page of a run reads at
most `timeline.PAGE_ENTRIES` entries at a time, and its cursor carries what the run had spent there.

What must hold: a visitor without a session sees only the sign-in page. Every change of a run or a proposal is a POST
from this site's own page, with the session's CSRF token, carried out by `service/service.py`; signing in and out and
passkeys are in `sign_in.py`. An approval needs what only a person has (`context.py`). Nothing is loaded from another
host, no script is inline, and templates escape every value; only `markdown.py` makes HTML of a text.
"""
