"""Formats of model providers and search engines, for tests of models and of web search."""
