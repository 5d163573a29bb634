"""Names of products as parts of a web address."""

import re


def slug(title: str) -> str:
    """Lower case, with one hyphen for every stretch of anything but letters and digits.

    >>> slug("Hex bolt, M8 (steel)")
    'hex-bolt-m8-steel'
    """
    return re.sub(r"[^a-z0-9]", "-", title.lower())
