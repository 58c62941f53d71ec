"""The request and answer formats of providers."""
