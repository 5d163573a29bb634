"""Who gets in, and which requests change something: approving is running code."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.app import people
from runner.app.handle import App
from runner.core.run import Author
from runner.web.safety import LoginLimit, own_path
from tests.web.browser import Browser
from tests.web.conftest import Site

TEMPLATES = Path(__file__).parents[2] / "runner" / "web" / "templates"
Open = Callable[..., Site]


def test_the_link_logs_one_browser_in_once(site: Site) -> None:
    first, second = site.stranger(), site.stranger()
    answer = first.get(site.link)
    assert answer.status == 303
    assert answer.headers["location"] == "/"
    assert answer.headers["referrer-policy"] == "no-referrer"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert first.get("/").status == 200
    assert second.get(site.link).status == 403
    assert second.get("/").status == 401


def test_a_look_at_the_link_alone_does_not_use_it_up(site: Site) -> None:
    assert site.stranger().send("HEAD", site.link).status == 401
    assert site.stranger().get(site.link).status == 303


def test_a_page_gives_a_link_for_another_browser(site: Site) -> None:
    page = site.browser().submit("/", "/link")
    (token,) = re.findall(r"/login\?token=([\w-]+)", page.text)
    other = site.stranger()
    assert other.get(f"/login?token={token}").status == 303
    assert other.get("/").status == 200


def test_another_host_name_is_refused(site: Site) -> None:
    browser = site.browser()
    for host in ("evil.example", f"evil.example:{site.port}", "127.0.0.1", ""):
        assert browser.get("/", host=host or "x").status == 421, host


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "", "sec-fetch-site": ""},
    ],
)
def test_a_write_from_another_page_is_refused(site: Site, headers: dict[str, str]) -> None:
    browser = site.browser()
    token = browser.csrf("/")
    assert browser.post("/logout", {"csrf": token}, **headers).status == 403
    assert browser.get("/").status == 200  # still logged in


def test_a_write_needs_the_token_of_its_own_session(site: Site) -> None:
    browser = site.browser()
    for token in ("", "x", "\ud83d".encode("utf-8", "replace").decode()):
        assert browser.post("/logout", {"csrf": token}).status == 403
    assert browser.post("/logout", {}).status == 403
    assert browser.post("/logout", {"csrf": browser.csrf("/")}).status == 303
    assert browser.get("/").status == 401


def test_other_methods_and_large_forms_are_refused(browser: Browser) -> None:
    assert browser.send("DELETE", "/").status == 405
    assert browser.post("/logout", {"csrf": "x" * 1_100_000}).status == 413


def test_every_response_forbids_what_is_not_ours(site: Site) -> None:
    answers = [site.browser().get("/"), site.stranger().get("/"), site.stranger().get("/nothing")]
    for answer in answers:
        rules = dict(
            rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
        )
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == "'self'"
        assert rules["frame-ancestors"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_the_log_has_no_token_and_no_cookie(
    open_site: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        site = open_site()
        browser = site.browser()
        token = browser.csrf("/")
        browser.post("/logout", {"csrf": token})
        site.stranger().get(site.link)
    said = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "logged in" in said
    assert site.link.partition("token=")[2] not in said
    assert browser.cookie.partition("=")[2] not in said
    assert token not in said


def test_failed_logins_are_limited(site: Site) -> None:
    stranger = site.stranger()
    statuses = [stranger.get("/login?token=x").status for _ in range(12)]
    assert statuses == [403] * 10 + [429] * 2
    assert stranger.get(site.link).status == 303  # strangers lock out nobody who has a link


def test_the_limit_of_logins_passes() -> None:
    now = 0.0
    limit = LoginLimit(lambda: now)
    for _ in range(10):
        limit.failed("here")
    assert limit.is_reached("here")
    assert not limit.is_reached("elsewhere")
    now = 301.0
    assert not limit.is_reached("here")


@pytest.mark.parametrize(
    "path", ["//evil.example", "https://evil.example", "/\\evil", "", "/a\r\nb"]
)
def test_a_login_leads_to_no_other_site(path: str) -> None:
    assert own_path(path) == "/"


def test_a_malformed_address_to_go_back_to_is_none(browser: Browser) -> None:
    assert browser.get("/", referer="http://[").status == 200


def test_people_log_in_with_their_token_and_have_their_role(app: App, open_site: Open) -> None:
    token = people.add(app, "lena", "look", Author("ada"), with_token=True)
    site = open_site(auth="users")
    browser = site.stranger()
    assert browser.get("/").headers["location"] == "/login?next=/"
    assert browser.post("/login", {"token": "guess"}).headers["location"] == "/login?failed=1"
    assert (
        browser.post("/login", {"token": str(token), "next": "/search"}).headers["location"]
        == "/search"
    )
    assert "lena" in browser.get("/").words
    people.remove(app, "lena", Author("ada"))
    assert browser.get("/").status == 303  # out with the next click


def test_a_session_ends_with_its_person_even_if_the_name_comes_back(
    app: App, open_site: Open
) -> None:
    leaked = people.add(app, "lena", "look", Author("ada"), with_token=True)
    browser = open_site(auth="users").stranger()
    browser.post("/login", {"token": str(leaked)})
    assert browser.get("/").status == 200
    people.remove(app, "lena", Author("ada"))
    people.add(app, "lena", "operate", Author("ada"), with_token=True)
    assert browser.get("/").status == 303


def test_a_token_is_stored_as_a_hash_only(app: App) -> None:
    token = people.add(app, "lena", "answer", Author("ada"), with_token=True)
    assert token is not None
    (lena,) = people.list_people(app, removed=False)
    assert token not in str(lena)
    assert lena["changes"][0]["data"]["by"] == "ada"
    assert people.person_of(app, people.hash_of(token)) == ("lena", "answer")
    assert people.person_of(app, people.hash_of(token + "x")) is None


def test_a_proxy_names_people_with_the_secret_only(app: App, open_site: Open) -> None:
    secret = "s" * 32
    people.add(app, "lena", "look", Author("ada"), with_token=False)
    site = open_site(auth="proxy", proxy_header="x-forwarded-user", proxy_secret=secret)
    stranger = site.stranger()
    lena = {"x-forwarded-user": "lena", "x-runner-proxy-secret": secret}
    assert stranger.send("GET", "/", headers=lena).status == 200
    for wrong in (
        {**lena, "x-runner-proxy-secret": "t" * 32},
        {**lena, "x-runner-proxy-secret": ""},
        {**lena, "x-forwarded-user": "bo"},
        {**lena, "x-forwarded-user": ""},
    ):
        assert stranger.send("GET", "/", headers=wrong).status == 401


def test_no_template_puts_text_into_an_attribute_unescaped() -> None:
    """What ``shown`` adds for control characters would be markup in an attribute."""
    for path in TEMPLATES.glob("*.html"):
        for tag in re.findall(r"<[a-z][^<>]*(?:\{\{.*?\}\}[^<>]*)+>", path.read_text()):
            for quoted in re.findall(r'"([^"]*\{\{.*?\}\}[^"]*)"', tag):
                for expression in re.findall(r"\{\{(.*?)\}\}", quoted):
                    assert expression.strip().endswith("|attr"), (path.name, tag)


def test_no_template_has_a_script_or_style_of_its_own() -> None:
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text()
        assert not re.search(
            r"<style|<script(?! src=\"\{\{ asset)|\sstyle=|\son[a-z]+=|\|safe", text
        ), path
