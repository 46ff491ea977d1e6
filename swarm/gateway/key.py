"""The key that requests must carry, if one is wanted."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from blockswarm.naming import option
from blockswarm.swarm.gateway.errors import GivenGatewayError

MAX_KEY_BYTES = 4096


class ApiKey:
    """A secret, kept as its hash.

    Parameters
    ----------
    text : str
        The secret; printable ASCII, since it travels in a header.
    """

    def __init__(self, text: str) -> None:
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise GivenGatewayError(f"{option('api_key')}: must be printable ASCII without spaces, and not empty")
        self._digest = _digest(text)

    def opens(self, authorization: str) -> bool:
        """Whether the value of an ``Authorization`` header carries it; takes as long whatever it is."""
        scheme, _, given = authorization.partition(" ")
        return hmac.compare_digest(_digest(given.strip()), self._digest) and scheme.lower() == "bearer"


def read_key(text: str | None, file: Path | None) -> ApiKey | None:
    """The key that was given, or the one in a file, which comes first; None when there is neither.

    Raises
    ------
    GivenGatewayError
        When the file cannot be read, or what is in it is no key.
    """
    if file is None:
        return None if text is None else ApiKey(text)
    try:
        with file.open("rb") as source:
            data = source.read(MAX_KEY_BYTES + 1)
        found = data.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise GivenGatewayError(f"{option('api_key_file')} {file}: cannot be read ({reason})") from error
    if not found or len(data) > MAX_KEY_BYTES:
        raise GivenGatewayError(f"{option('api_key_file')} {file}: must hold one key on one line")
    return ApiKey(found)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()
