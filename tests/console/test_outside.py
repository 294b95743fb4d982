"""What the console does when nobody looks, and when the service is away."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import httpx

from tests.browser_push import Subscription, content
from tests.console.browser import Browser, Page
from tests.console.measure import say
from tests.console.test_console import is_complete, tool
from tests.receivers import receiver
from tests.running import Service, Upstream, service

# What the browser shows on the icon cannot be read from a page.
BADGE = """navigator.setAppBadge = async (count) => { globalThis.badge = count; };
navigator.clearAppBadge = async () => { globalThis.badge = 0; };"""
LOOK_AWAY = "Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' }); null"
SHOWN = """(async () => {
  const worker = await navigator.serviceWorker.ready;
  return (await worker.getNotifications()).map(({ title, body, data }) => ({ title, body, data }));
})()"""
CLICKED = """(async () => {
  const [notification] = await self.registration.getNotifications();
  self.dispatchEvent(new NotificationEvent('notificationclick', { notification }));
  return null;
})()"""
KEPT = """navigator.serviceWorker.ready
  .then(() => caches.keys())
  .then(async (names) => (await Promise.all(names.map((each) => caches.open(each)))))
  .then((all) => Promise.all(all.map((each) => each.keys())))
  .then((all) => all.flat().map((each) => new URL(each.url).pathname))"""


def test_who_looks_elsewhere_is_told_what_waits(
    browser: Browser, front: str, behind_console: Service
) -> None:
    allowed = ["notifications"]
    with browser.page(front, path="/settings", before=BADGE, permissions=allowed) as page:
        page.click(".settings .check")
        page.until("localStorage.getItem('console.notifications') === 'on'")
        page.wait(".link-live")
        page.evaluate("navigator.serviceWorker.ready.then(() => null)")
        page.evaluate(LOOK_AWAY)
        command = "rm -f nobody-looks.txt"
        say(behind_console, f"Clean up {tool('bash', command=command, description='Remove')}")
        page.until(f"{SHOWN}.then((all) => all.length === 1)")
        [shown] = page.evaluate(SHOWN)
        assert shown["body"] == command
        assert shown["title"].startswith("Clean up")
        assert page.evaluate("globalThis.badge") == 1
        assert page.evaluate("document.title").startswith("(1) ")
        page.call("worker", script=CLICKED)
        page.wait(".ask .command")
        assert page.text(".ask .command") == command
        assert shown["data"]["path"] in page.call("url")
        page.click(".ask button.primary")
        is_complete(page)
        page.until("globalThis.badge === 0 && !document.title.startsWith('(')")


# No push service can be reached here, so the browser's part of the subscription is played.
SUBSCRIBED = """PushManager.prototype.getSubscription = async () => null;
PushManager.prototype.subscribe = async ({ userVisibleOnly, applicationServerKey }) => {
  sessionStorage.setItem('key', btoa(String.fromCharCode(...applicationServerKey)));
  return { toJSON: () => ({ endpoint: '%s', keys: { p256dh: '%s', auth: '%s' } }) };
};"""
NOTIFIED = """self.registration.getNotifications().then((all) =>
  all.map(({ title, body, data }) => ({ title, body, data })))"""


def test_who_has_closed_the_console_is_told_through_the_push_service_of_the_browser(
    browser: Browser, working_opencode: Upstream, place: Path
) -> None:
    subscription = Subscription()
    p256dh, _, auth = subscription.credentials.partition(".")
    settings = {"A2A_PUSH": "true", "A2A_PUSH_PRIVATE_HOSTS": "127.0.0.1"}
    command = "rm -f closed.txt"
    with receiver() as push_service, service(working_opencode, place, **settings) as run:
        before = SUBSCRIBED % (f"{push_service.url}/send/1", p256dh, auth)
        allowed = ["notifications"]
        with browser.page(run.url, path="/settings", before=before, permissions=allowed) as page:
            page.click(".settings .check")
            page.wait(".settings p:has-text('while the console is closed')")
            page.click(".new")
            page.send(f"Clean up {tool('bash', command=command, description='Remove')}")
            page.wait(".ask")
            [received] = push_service.wait_for(1)
            told = json.loads(subscription.read(received.body))["statusUpdate"]
            assert told["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            assert command.encode() not in received.body
            keys = httpx.get(f"{run.url}/.well-known/jwks.json", timeout=60).json()["keys"]
            point = base64.b64decode(page.evaluate("sessionStorage.getItem('key')"))
            assert point == b"\x04" + content(keys[0]["x"]) + content(keys[0]["y"])
            page.call("push", origin=run.url, data=json.dumps({"statusUpdate": told}))
            page.call("worker until", script=f"{NOTIFIED}.then((all) => all.length === 1)")
            [shown] = page.call("worker", script=NOTIFIED)
            assert command in shown["body"]
            page.call("goto", url=f"{run.url}{shown['data']['path']}")
            page.wait(".ask button.primary")
            page.click(".ask button.primary")
            is_complete(page)
            assert len(push_service.wait_for(2)) == 2, "that it waits, and its end; nothing else"


def kept(page: Page) -> list[str]:
    return sorted(page.evaluate(KEPT))


def test_without_the_service_the_page_opens_says_so_and_goes_on_later(
    browser: Browser, working_opencode: Upstream, place: Path, port: int
) -> None:
    settings = {"A2A_PORT": str(port)}
    with service(working_opencode, place, **settings) as first:
        front = browser.front(first.url)
        with browser.page(front) as page:
            page.send("Hello")
            is_complete(page)
            page.until(f"{KEPT}.then((all) => all.includes('/console/'))")
            first.program.stop()
            page.call("reload")
            page.wait(".login-error")
            assert "cannot be reached" in page.text(".login-error")
            found = kept(page)
            assert all(path.startswith("/console/") for path in found), "nothing of the API"
            assert "/console/config.json" not in found
            assert any(path.endswith(".js") and "/assets/" in path for path in found)
            with service(working_opencode, place, **settings):
                page.wait(".link-live")
                is_complete(page)
                assert page.text(".said-text") == "Hello"


def test_it_can_be_installed(browser: Browser, front: str) -> None:
    """What a browser asks of a page before it offers to put it on the home screen."""
    with browser.page(front) as page:
        page.wait(".shell")
        script = "fetch(document.querySelector('link[rel=manifest]').href).then((it) => it.json())"
        manifest = page.evaluate(script)
        assert manifest["name"]
        assert manifest["display"] == "standalone"
        assert manifest["start_url"].startswith("/console")
        assert {each["sizes"] for each in manifest["icons"]} >= {"192x192", "512x512"}
        page.until("navigator.serviceWorker.ready.then((it) => it.scope.endsWith('/console'))")
