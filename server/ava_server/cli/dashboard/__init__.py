"""The screen of `ava status`: what is looked at, how it is said, and how it fits a terminal."""
