"""Which arguments may reach one of OpenCode's commands; that they do no harm there is shown by
`tests/extensions/test_commands.py`."""

from __future__ import annotations

import pytest

from opencode_a2a.domain.commands import mentions_file, refusal

ALLOWED = [
    ("None", "it's 5 > 4! (mail me@example.com; or not)"),
    ("Say $ARGUMENTS", 'two "lines"\r\nand\ta 漢 | sh'),
    ("Look at @README.md, $1", "then at ../x, ~/y and .env"),
    ("Status: !`git status $(pwd)` $ARGUMENTS", "of src/x.py; 'in short'"),
    ("Explain `git show $ARGUMENTS` to me.", "HEAD~1 feature/x_y; rm -rf /"),
    ("!`echo $1`", ""),
    (None, ""),
]
REFUSED = [
    # what would begin a shell command, a substitution or a file name
    *[
        ("Say $ARGUMENTS", text)
        for text in ("$'", "$HOME", "`", "!`x`", "@x", "é@x", "a @ b", "@~")
    ],
    *[("None", text) for text in ("!`touch x`", "see @/etc/passwd", "$(touch x)")],
    ("Explain `$ARGUMENTS` to me.", "!$'\ntouch x\n$'"),
    ("Compare `$1` against $2 using `$3`.", 'x! "| touch x |" y'),
    ("$1`$2`", "! 'touch x'"),
    # a placeholder within a shell command
    ("!`echo $1`", "x"),
    ("!`echo a\nb $ARGUMENTS`", "x"),
    ("!`$2`", "x touch y"),
    ("!$1`$2`", '"" "touch x"'),
    ("!`echo $ARG$1`", "UMENTS"),
    # or in one word with one, whose output may begin or end with an @, or with a file name
    *[(f"!`echo x`{more}$1", "y") for more in ("", "@", "`", "(@../")],
    ("x$1!`echo x`", ","),
    *[
        (template, "x")
        for template in ("Look at @$1", "@src/$1.py", "@README.md$1", "x$1@README.md")
    ],
    ("@$ARG$1", "UMENTS"),
    # a template that OpenCode does not show
    (None, "x"),
    (None, " "),
]


@pytest.mark.parametrize(("template", "arguments"), ALLOWED)
def test_arguments_for_the_model_are_allowed(template: str | None, arguments: str) -> None:
    assert refusal(template, arguments) is None


@pytest.mark.parametrize(("template", "arguments"), REFUSED)
def test_arguments_that_could_act_are_refused(template: str | None, arguments: str) -> None:
    assert refusal(template, arguments)


@pytest.mark.parametrize(
    ("text", "mentions"),
    [("me@example.com", False), ("a_@b 1@c", False), ("é@x", True), ("(@x", True), ("@", True)],
)
def test_a_file_is_mentioned_where_its_name_could_begin(text: str, mentions: bool) -> None:
    assert mentions_file(text) is mentions
