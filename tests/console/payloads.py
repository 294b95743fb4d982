"""Things that run in a browser if a page lets them: each says so by calling `ran()`."""

from __future__ import annotations

RUN = "ran()"
_TAGS = (
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<img src=x onerror='{RUN}'>",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<body onload={RUN}>",
    f"<iframe src=javascript:{RUN}></iframe>",
    f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>',
    f"<object data=javascript:{RUN}></object>",
    f"<embed src=javascript:{RUN}>",
    f"<a href=javascript:{RUN}>x</a>",
    f"<form action=javascript:{RUN}><input type=submit autofocus></form>",
    f"<input autofocus onfocus={RUN}>",
    f"<details open ontoggle={RUN}>x</details>",
    f"<video><source onerror={RUN}></video>",
    f"<audio src=x onerror={RUN}>",
    f"<marquee onstart={RUN}>x</marquee>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}>",
    f"<template><img src=x onerror={RUN}></template>",
    f"<noscript><p title='</noscript><img src=x onerror={RUN}>'>",
    f"<style>@import 'javascript:{RUN}';</style>",
    f"<link rel=stylesheet href=javascript:{RUN}>",
    f"<meta http-equiv=refresh content='0;url=javascript:{RUN}'>",
    f"<base href=javascript:{RUN}//>",
    f"<div style='background:url(javascript:{RUN})'>x</div>",
    f"<button popovertarget=x onclick={RUN} autofocus>x</button>",
    f"<xss contenteditable onbeforeinput={RUN} autofocus tabindex=1>x</xss>",
    f"<select autofocus onfocus={RUN}><option>x</select>",
    f"<isindex type=image src=1 onerror={RUN}>",
)
_ADDRESSES = (
    f"javascript:{RUN}",
    f"JaVaScRiPt:{RUN}",
    f"java&#115;cript:{RUN}",
    f"java\tscript:{RUN}",
    f"&#106;avascript:{RUN}",
    f"\x01javascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    "data:text/html;base64,PHNjcmlwdD5yYW4oKTwvc2NyaXB0Pg==",
    f"vbscript:{RUN}",
    f"//x/%0ajavascript:{RUN}",
    f"blob:javascript:{RUN}",
    f"view-source:javascript:{RUN}",
)
_ADDRESS_FORMS = (
    "[x]({})",
    "![x]({})",
    "<{}>",
    "[x]: {}\n\n[x]",
    "[x](<{}>)",
    '[x]({} "title")',
    "[![x]({})](https://example.com)",
    "| a |\n|---|\n| [x]({}) |",
)
_FRAMES = (
    "{}",
    "**{}**",
    "- {}",
    "> {}",
    "`{}`",
    "```html\n{}\n```",
    '"><{}',
    "# {}",
    "&lt;{}",
    "| a |\n|---|\n| {} |",
)


def payloads() -> list[str]:
    framed = [frame.format(tag) for tag in _TAGS for frame in _FRAMES]
    addressed = [form.format(address) for address in _ADDRESSES for form in _ADDRESS_FORMS]
    return framed + addressed
