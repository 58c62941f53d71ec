"""A response body on its way in, bounded before and after decompression."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zlib import _Decompress  # pyright: ignore[reportPrivateUsage]

_SLACK = 65_536  # a gzip stream may be a little longer than what it holds
_GZIP_OR_ZLIB = 47


class Body:
    """Collects at most `cap` bytes; a decompression bomb costs no more than that.

    Attributes:
        data: What came so far, decompressed.
        truncated: There was more, or the compressed stream broke off.
    """

    def __init__(self, cap: int, *, gzipped: bool) -> None:
        self.data = bytearray()
        self.truncated = False
        self._cap = cap
        self._raw = 0
        self._gzip: _Decompress | None = zlib.decompressobj(_GZIP_OR_ZLIB) if gzipped else None
        self._first = True

    def add(self, chunk: bytes) -> bool:
        """Take a piece as it came over the wire; returns False when no more is wanted.

        Raises:
            zlib.error: It is not the gzip stream that the header announced.
        """
        self._raw += len(chunk)
        if self._gzip is None:
            self.data += chunk[: self._cap + 1 - len(self.data)]
        elif not self._inflate(chunk):
            return False
        if len(self.data) > self._cap or self._raw > self._cap + _SLACK:
            del self.data[self._cap :]
            self.truncated = True
        return not self.truncated

    def end(self) -> None:
        """Note that nothing more comes."""
        if self._gzip is not None and self._raw and not self._gzip.eof:
            self.truncated = True

    def _inflate(self, chunk: bytes) -> bool:
        """Decompress a piece; a gzip stream may consist of several members. False at rubbish after one."""
        while chunk and self._gzip is not None and len(self.data) <= self._cap:
            if self._gzip.eof:
                self._gzip = zlib.decompressobj(_GZIP_OR_ZLIB)
                self._first = False
            try:
                self.data += self._gzip.decompress(chunk, self._cap + 1 - len(self.data))
            except zlib.error:
                if self._first:
                    raise
                return False
            chunk = self._gzip.unused_data
        return True
