"""A page as a browser reads it: its elements and what is text in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "input", "img", "br"}


@dataclass
class Parsed(HTMLParser):
    """``elements`` are names with attributes, ``texts`` what is said, without style and script."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    open_elements: list[str] = field(default_factory=list)
    controls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def of(cls, html: str) -> Parsed:
        parsed = cls()
        parsed.feed(html)
        parsed.close()
        assert parsed.open_elements == []
        return parsed

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open_elements.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_elements.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open_elements[-1] if self.open_elements else ""
        if inside in ("style", "script"):
            self.sources.setdefault(inside, []).append(data)
        else:
            self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return "".join(self.texts)
