"""The pages that a person opens in a browser: to see runs, costs and the log, and to decide.

Seam: `pages.Pages` is the ASGI application; the HTTP server gives it the requests that carry no bearer token, and
`site.Site` says for whom it is. A visitor without a session sees only the sign-in page. Every change is a POST from
this site's own page, with the session's CSRF token. An approval needs what only a person has (`authority.py`). Nothing
is loaded from another host, no script is inline, and every text of a model or page is escaped.
"""
