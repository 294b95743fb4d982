"""What the console does when nobody looks, and when the service is away."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx

from tests.browser_push import Subscription, content
from tests.console.browser import Browser, Page
from tests.console.measure import say
from tests.console.test_console import is_complete, tool
from tests.receivers import Received, receiver
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
    browser: Browser, working_opencode: Upstream, place: Path
) -> None:
    shown_as: dict[str, Any] = {"before": BADGE, "permissions": ["notifications"]}
    with (
        service(working_opencode, place) as run,
        browser.page(run.url, path="/settings", **shown_as) as page,
    ):
        page.click(".settings .check")
        page.until("localStorage.getItem('console.notifications') === 'on'")
        page.wait(".link-live")
        page.evaluate("navigator.serviceWorker.ready.then(() => null)")
        page.evaluate(LOOK_AWAY)
        command = "rm -f nobody-looks.txt"
        say(run, f"Clean up {tool('bash', command=command, description='Remove')}")
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
SUBSCRIBED = """let subscription = null;
PushManager.prototype.getSubscription = async () => subscription;
PushManager.prototype.subscribe = async ({ userVisibleOnly, applicationServerKey }) => {
  sessionStorage.setItem('key', btoa(String.fromCharCode(...applicationServerKey)));
  subscription = {
    options: { applicationServerKey },
    toJSON: () => ({ endpoint: '%s', keys: { p256dh: '%s', auth: '%s' } }),
    unsubscribe: async () => {
      subscription = null;
      sessionStorage.setItem('unsubscribed', 'yes');
    },
  };
  return subscription;
};"""
KEY = "sessionStorage.getItem('key')"
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
            point = base64.b64decode(page.evaluate(KEY))
            assert point == b"\x04" + content(keys[0]["x"]) + content(keys[0]["y"])
            page.evaluate("sessionStorage.removeItem('key')")
            page.call("push", origin=run.url, data=json.dumps({"statusUpdate": told}))
            page.call("worker until", script=f"{NOTIFIED}.then((all) => all.length === 1)")
            [shown] = page.call("worker", script=NOTIFIED)
            assert command in shown["body"]
            page.call("goto", url=f"{run.url}{shown['data']['path']}")
            page.wait(".ask button.primary")
            page.click(".ask button.primary")
            is_complete(page)
            page.until(f"{KEY} !== null")
            page.send("Hello again")
            states = [state_in(subscription, each) for each in push_service.wait_for(3)]
            assert states[0] == "TASK_STATE_INPUT_REQUIRED"
            assert states[1:] == ["TASK_STATE_COMPLETED"] * 2, "their ends, and nothing else"


def state_in(subscription: Subscription, received: Received) -> str:
    told = json.loads(subscription.read(received.body))
    [what] = told.values()  # `task`, or `statusUpdate`
    return str(what["status"]["state"])


def test_a_message_is_sent_also_where_the_service_may_not_push_to_the_browser(
    browser: Browser, working_opencode: Upstream, place: Path
) -> None:
    settings = {"A2A_PUSH": "true", "A2A_PUSH_ALLOWED_HOSTS": "hooks.example"}
    p256dh, _, auth = Subscription().credentials.partition(".")
    before = SUBSCRIBED % ("https://push.example/send/1", p256dh, auth)
    shown_as: dict[str, Any] = {"before": before, "permissions": ["notifications"]}
    with (
        service(working_opencode, place, **settings) as run,
        browser.page(run.url, path="/settings", **shown_as) as page,
    ):
        page.click(".settings .check")
        page.wait(".settings p:has-text('while the console is closed')")
        page.click(".new")
        page.send("Hello")
        is_complete(page)
        assert "only while a page of the console is open" in page.text(".notice")
        page.click(".pages a[href$=settings]")
        page.wait(".settings p:has-text('while a page of the console is open')")
        page.evaluate("sessionStorage.removeItem('key')")
        page.call("reload")
        page.until(f"{KEY} !== null")
        page.click(".new")
        page.send("Hello again")
        is_complete(page)
        assert page.count(".notice") == 0, "once is enough"


def test_who_logs_out_leaves_nothing_behind(
    browser: Browser, working_opencode: Upstream, place: Path
) -> None:
    p256dh, _, auth = Subscription().credentials.partition(".")
    with receiver() as push_service:
        before = BADGE + SUBSCRIBED % (f"{push_service.url}/send/1", p256dh, auth)
        shown_as: dict[str, Any] = {"before": before, "permissions": ["notifications"]}
        settings = {"A2A_PUSH": "true", "A2A_PUSH_PRIVATE_HOSTS": "127.0.0.1"}
        with (
            service(working_opencode, place, **settings) as run,
            browser.page(run.url, path="/settings", **shown_as) as page,
        ):
            page.click(".settings .check")
            page.wait(".settings p:has-text('while the console is closed')")
            page.click(".new")
            page.send(tool("bash", command="rm -f left.txt", description="Remove"))
            page.wait(".ask")
            page.until("globalThis.badge === 1 && document.title.startsWith('(1) ')")
            page.call("fill", selector=".composer textarea", value="my draft")
            page.until("Object.values(sessionStorage).includes('my draft')")
            page.click(".pages a[href$=settings]")
            page.click(".page-foot button")
            page.wait(".login-card")
            page.until("sessionStorage.getItem('unsubscribed') === 'yes'")
            page.until("globalThis.badge === 0 && !document.title.startsWith('(')")
            left = page.evaluate("[...Object.keys(sessionStorage), ...Object.keys(localStorage)]")
            assert not [each for each in left if "draft" in each or "token" in each]
            page.call("fill", selector="input[name=token]", value="wrong")
            page.click("button[type=submit]")
            page.wait(".login-error")
            assert "was not accepted" in page.text(".login-error")


# What was shown by the service worker, also what it has closed again.
RECORD = """(() => {
  const { registration } = self;
  const show = registration.showNotification.bind(registration);
  self.shown = [];
  registration.showNotification = (title, options) => {
    self.shown.push({ title, body: options.body, silent: options.silent });
    return show(title, options);
  };
  return null;
})()"""


def test_a_push_is_always_shown_but_who_looks_is_not_disturbed(
    browser: Browser, front: str
) -> None:
    """A browser ends the subscription of a page that gets pushes and shows nothing."""
    status = {"state": "TASK_STATE_COMPLETED"}
    data = json.dumps({"statusUpdate": {"taskId": "t", "contextId": "c", "status": status}})
    allowed = ["notifications"]
    with browser.page(front, locale="de-DE", permissions=allowed) as page:
        page.wait(".link-live")
        page.evaluate("navigator.serviceWorker.ready.then(() => null)")
        page.until("caches.match('/console/words').then((found) => found !== undefined)")
        title = page.evaluate("document.title")
        page.call("worker", script=RECORD)
        page.call("push", origin=front, data=data, stay=True)
        page.call("worker until", script="self.shown.length === 1")
        page.call("worker until", script=f"{NOTIFIED}.then((all) => all.length === 0)")
        page.call("push", origin=front, data=data)
        page.call("worker until", script=f"{NOTIFIED}.then((all) => all.length === 1)")
        seen, unseen = page.call("worker", script="self.shown")
        assert seen["silent"]
        assert unseen == {"title": title, "body": "Fertig", "silent": False}


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


EVERYTHING = {"path": ".*", "status": 502, "body": "<h1>Bad Gateway</h1>"}
NEWER = '<script type="module" src="/console/assets/newer-1.js"></script>'
NEWER_PAGE = {"path": "^/console/?$", "status": 200, "body": NEWER}
NO_ASSET = {"path": "/assets/newer", "status": 502, "body": ""}
NEWER_ASSET = {"path": "/assets/newer", "status": 200, "body": ""}


def test_the_page_stays_while_a_proxy_does_not_reach_the_service(
    browser: Browser, behind_console: Service
) -> None:
    front = browser.front(behind_console.url)

    def answers(*instead: dict[str, Any]) -> None:
        browser.call("answer", front=front, answers=instead)

    with browser.page(front) as page:
        page.wait(".link-live")
        page.until(f"{KEPT}.then((all) => all.includes('/console/'))")
        before = kept(page)
        answers(EVERYTHING)
        browser.call("cut", front=front)
        page.wait(".link-reconnecting")
        page.call("reload")
        page.wait(".login-error")
        assert "cannot be reached: HTTP 502" in page.text(".login-error")
        answers(NEWER_PAGE, NO_ASSET)
        page.call("reload")
        answers(EVERYTHING)
        page.call("reload")
        page.wait(".login-error")
        assert set(before) <= set(kept(page)), "a newer version that cannot be loaded yet"
        answers()
        page.wait(".link-live")


def test_the_login_of_the_organisation_is_offered_once_the_service_is_back(
    browser: Browser, behind_console: Service
) -> None:
    front = browser.front(behind_console.url)
    oidc = {"issuer": "https://login.example", "client_id": "console", "scope": "openid"}
    config = {"version": "1", "title": "Ours", "login": {"token": True, "oidc": oidc}}
    there = {"path": "config.json$", "status": 200, "body": json.dumps(config)}
    browser.call("answer", front=front, answers=[{**EVERYTHING, "path": "config.json$"}])
    with browser.page(front, token="") as page:
        page.wait(".login-card input[name=token]")
        assert page.count("button:has-text('Log in with your organisation')") == 0
        browser.call("answer", front=front, answers=[there])
        page.wait("button:has-text('Log in with your organisation')")
        assert page.text(".login-card h1") == "Ours"


def test_a_newer_version_takes_the_place_of_the_kept_one(
    browser: Browser, behind_console: Service
) -> None:
    front = browser.front(behind_console.url)
    with browser.page(front) as page:
        page.wait(".link-live")
        page.until(f"{KEPT}.then((all) => all.includes('/console/'))")
        browser.call("answer", front=front, answers=[NEWER_PAGE, NEWER_ASSET])
        page.call("reload")
        assets = f"{KEPT}.then((all) => all.filter((each) => each.includes('/assets/')).join())"
        page.until(f"{assets}.then((all) => all === '/console/assets/newer-1.js')")


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
