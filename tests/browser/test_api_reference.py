"""The page of the API at /docs, in a browser that reaches nothing but the server."""

from __future__ import annotations

from urllib.parse import urlsplit

from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Site


def open_offline(page: Page, site: Site) -> list[str]:
    """Open the page; return the list of the requests to other hosts, which fail."""
    elsewhere: list[str] = []
    own = urlsplit(site.url).netloc

    def answer(route: Route) -> None:
        if urlsplit(route.request.url).netloc == own:
            route.continue_()
        else:
            elsewhere.append(route.request.url)
            route.abort()

    page.route("**/*", answer)
    page.goto(f"{site.url}/docs")
    return elsewhere


def test_every_operation_is_shown_without_a_network(page: Page, site: Site) -> None:
    elsewhere = open_offline(page, site)
    documented = site.get("/openapi.json")["paths"]
    expect(page.locator(".operation")).to_have_count(sum(len(methods) for methods in documented.values()))
    expect(page.get_by_text("Create a session", exact=True)).to_be_visible()
    assert elsewhere == []


def test_an_operation_can_be_found_and_called(page: Page, site: Site) -> None:
    elsewhere = open_offline(page, site)
    page.get_by_label("Filter the operations").fill("create a session")
    operation = page.locator(".operation:visible", has=page.get_by_text("Create a session", exact=True))
    expect(operation).to_have_count(1)
    expect(page.get_by_text("Pull the chunks of a message", exact=True).first).not_to_be_visible()
    operation.locator("summary").first.click()
    body = operation.get_by_label("Body of the request")
    expect(body).to_have_value('{\n  "app_name": "",\n  "user_id": ""\n}')
    body.fill('{"app_name": "shop", "user_id": "from-the-page"}')
    operation.get_by_role("button", name="Send").click()
    expect(operation.get_by_text("201 Created")).to_be_visible()
    expect(operation.locator("pre").first).to_contain_text('"user_id": "from-the-page"')
    assert [
        session["user_id"]
        for session in site.get("/api/sessions", app_name="shop", user_id="from-the-page")["sessions"]
    ]
    assert elsewhere == []
