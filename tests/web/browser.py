"""A browser without scripts: it keeps cookies, says where a form is from, and sends what the form has."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
from urllib.parse import urlencode

_CSRF = re.compile(r'name="csrf" value="([^"]*)"')


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def words(self) -> str:
        """What a reader sees: the text without markup, on one line."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.text)).split())


class Browser:
    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.cookie = ""
        self.address = origin.removeprefix("http://")

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, headers=headers)

    def follow(self, path: str) -> Answer:
        """A page, through redirections on this site."""
        answer = self.get(path)
        while 300 <= answer.status < 400:
            answer = self.get(answer.headers["location"])
        return answer

    def submit(self, page: str, to: str, **fields: str) -> Answer:
        """Fill in a form of a page, and return the page that it leads to."""
        token = self.csrf(page)
        answer = self.post(to, {"csrf": token, "back": page, **fields})
        assert answer.status == 303, answer.text[:500]
        return self.follow(answer.headers["location"])

    def csrf(self, page: str) -> str:
        (token, *_) = _CSRF.findall(self.get(page).text)
        return unescape(str(token))

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        own = {"origin": self.origin, "sec-fetch-site": "same-origin"}
        own["content-type"] = "application/x-www-form-urlencoded"
        return self.send("POST", path, urlencode(fields), {**own, **headers})

    def send(
        self,
        method: str,
        path: str,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request; a header that is empty is left out."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        given = {"host": self.address, "cookie": self.cookie, **(headers or {})}
        given = {name.replace("_", "-"): value for name, value in given.items() if value}
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value.encode())
            data = body.encode() if body is not None else b""
            if body is not None:
                connection.putheader("content-length", str(len(data)))
            connection.endheaders(data or None)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, found, response.read())
        finally:
            connection.close()
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer
