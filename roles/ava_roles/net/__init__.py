"""Reaches the network for subagents: public web pages (`fetch`), search engines, and HTTP proxies.

The seam is `fetch.Fetcher.get` for pages and `search_engines.search` for searches. Invariants: a fetch connects only to
public addresses, checked again at every redirect and connection; each fetch and search has a deadline and a size limit;
no message contains a key or a password.
"""
