"""Deliveries as suppliers send them: lines of comma-separated values."""


def read(text: str) -> list[dict[str, str]]:
    """The records of a delivery note, by the names in its first line."""
    header, *lines = text.splitlines()
    names = header.split(",")
    return [dict(zip(names, line.split(","), strict=False)) for line in lines]
