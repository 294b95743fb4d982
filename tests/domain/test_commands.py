"""What OpenCode makes of a command's template and arguments, and which arguments may reach it.

That the model is OpenCode's is shown by `tests/extensions/test_commands.py`, on the real one.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from opencode_a2a.domain.commands import (
    changes_actions,
    expand,
    forbidden_characters,
    mentions_file,
    refusal,
)
from tests.domain.logs import STEADY
from tests.extensions.command_oracle import file_references, shell_commands, with_outputs

PIECES = [
    *("a", "word ", " ", "\n", "\r", "\t", "é", "漢", "\u00a0", "\ufeff", "\u2028", ".", ",", "|"),
    *("`", "!", "!`", "$", "$1", "$2", "$0", "$12", "$ARGUMENTS", "$ARG", "UMENTS", "$'", "$`"),
    *("$&", "$$", "@", "@README.md", "src/", "'", '"', "[Image 1]", "~", "-", "\x00", "\x1b"),
    *("..", "../", "/", "(", "@..", "!`b`", "!`b`", "!`c d`"),
]
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map("".join)
OUTPUTS = st.lists(
    st.sampled_from(
        ["", "`", "@", "@x", "x", ".", ",", "\n", "@.", "@x.", "!`q`", "y@", "@~/", " "]
    ),
    min_size=12,
    max_size=12,
)
MARK = "ZQX"


EXPANSIONS = [
    ("Say $ARGUMENTS.", "a  b", "Say a  b."),
    ("$1 and $2", "a b", "a and b"),
    ("$1 and $2", "a", "a and "),
    ("$1 and $2", "a b c", "a and b c"),  # the last placeholder takes the rest
    ("$2 and $1", "a b c", "b c and a"),
    ("$1, $1", "a b", "a b, a b"),
    ("$1", "'a b' \"c d\" e", "a b c d e"),
    ("$1|$2|$3", "'a b' \"c d\" e", "a b|c d|e"),
    ("$1|$2", "a'b c'd", "a|b c d"),
    ("$1|$2", "it's a", "it|s a"),
    ("$1|$2", "[Image 1] [image\u00a022] x", "[Image 1]|[image\u00a022] x"),
    ("$1|$2", "x[Image 1]", "x[Image|1]"),
    ("$1|$2", "[\u0130mage 1]", "[\u0130mage|1]"),  # only ASCII letters ignore case
    ("$1|$2", "a\x1fb\ufeffc\x85d", "a\x1fb|c\x85d"),  # spaces are JavaScript's
    ("$01|$10|$99999999999999999999999", "a", "a||"),
    ("$0", "a b", "b"),
    ("$0", "", ""),
    ("$0 $1", "a", "undefined a"),
    ("None", "", "None"),
    ("None", " \ufeff\n", "None"),
    ("None", " a ", "None\n\n a "),
    ("$ARG", "a", "$ARG\n\na"),
    ("<$ARGUMENTS>", "$$ $& $1 $< $0", "<$ $ARGUMENTS $1 $< $0>"),
    ("<$ARGUMENTS>", "$`|$'", "<<|>>"),
    ("$1 $ARGUMENTS", "$ARGUMENTS", "$ARGUMENTS $ARGUMENTS"),
    ("$$1", "ARGUMENTS b", "ARGUMENTS b b"),
    ("$ARG$1", "UMENTS", "UMENTS"),
]
ALLOWED = [
    ("None", "it's 5 > 4! (mail me@example.com; or not)"),
    ("Say $ARGUMENTS", 'two "lines"\r\nand\ta 漢 \U0001f468\u200d\U0001f469'),
    ("Look at @README.md: $ARGUMENTS", "closely"),
    ("Look at @README.md, $1", "then at ../x, ~/y and .env"),
    ("Status: !`git status` $ARGUMENTS", "of src/x.py"),
    ("Run `git show $ARGUMENTS`", "HEAD~1 feature/x_y v1.0 key=a:b #12 50% -q größer हिन्दी"),
    ("Status: !`git status` $ARGUMENTS", "in short"),
    ("`$1`!", "x"),
    ("!`echo $1`", " "),
    ("Look at @$1", " "),
]
PATHS = [
    ("!`date`@$1", "../workspace/secret.txt"),
    ("See:!`echo hi`(@../$1", "workspace/secret.txt"),
    ("!`echo hi`@$1", "."),
    ("!`echo hi`@$1", ".."),
    ("!`echo @`!`true`$ARGUMENTS", ". "),
    ("!`true`!`echo @`$ARGUMENTS", ".. "),
    ("!`echo @`.$1", ". "),
    ("!$2`echo @`$1", "."),
    ("@,$1@$1", ".."),
]
REFUSED = [
    *PATHS,
    ("See:!`echo hi`(@../$1", "workspace"),
    ("Explain `$ARGUMENTS` to me.", "!$'\ntouch x\n$'"),
    ("Compare `$1` against $2 using `$3`.", 'x! "| touch x |" y'),
    ("Input: $ARGUMENTS\n- `git show $ARGUMENTS`\n- `git diff`", "x!"),
    *[("Say $ARGUMENTS", text) for text in ("$", "$'", "$HOME", "`", "!`x`", "@x", "é@x", "a @ b")],
    *[("Say $ARGUMENTS", text) for text in ("\x00", "\x1b[2J", "\x85", "\ud800")],
    *[("None", text) for text in ("!`touch x`", "see @/etc/passwd", "$(touch x)")],
    *[("`x` $1", text) for text in ("x!", "'x'", "a;b", "a\nb", "a|b", "a&b", "<x", "(x)", "\\")],
    ("!`echo $1`", "x"),
    ("!`$ARGUMENTS`", "touch x"),
    ("!`$2`", "x touch y"),
    ("!`echo x`$1", "y"),  # the output may end with an @
    ("x$1!`echo x`", ","),  # the output may begin with one
    ("Look at @$1", "x"),
    ("Look at @src/$1.py", "secret"),
    *[("Look at @README.md$1", text) for text in ("x", ", please")],
    ("x$1@README.md", ","),
    ("$$1 `x", "ARGUMENTS!"),
    ("@$ARG$1", "UMENTS"),
    (None, "x"),
    (None, " "),
]


@pytest.mark.parametrize(("template", "arguments", "text"), EXPANSIONS)
def test_arguments_are_filled_in(template: str, arguments: str, text: str) -> None:
    assert expand(template, arguments) == text


def test_what_the_model_of_opencode_runs_and_reads() -> None:
    text = " !`a` x!`b\nc` !`` `d` !`e \ufeff"
    assert shell_commands(text) == ["a", "b\nc"]
    assert with_outputs(text, ["1", "@2"]) == "1 x@2 !`` `d` !`e"
    assert file_references(with_outputs(text, ["@1", "@2"])) == ["1"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("@a (@b) é@c @d@e", ["a", "b)", "c", "d@e"]),
        ("a@b _@c 1@d `@e @ @, @`", []),
        ("@.env @./x.y. @a..b @a,b @../x @~/x", [".env", "./x.y", "a", "a", "../x", "~/x"]),
        ("@a\u00a0b @c\ufeffd @e\x1ff", ["a", "c", "e\x1ff"]),
        ("@@../x @x@../y (@.", ["@", "x@", "."]),
    ],
)
def test_file_references(text: str, names: list[str]) -> None:
    assert file_references(text) == names


@pytest.mark.parametrize(("template", "arguments"), ALLOWED)
def test_harmless_arguments_are_allowed(template: str, arguments: str) -> None:
    assert refusal(template, arguments) is None


@pytest.mark.parametrize(("template", "arguments"), REFUSED)
def test_arguments_that_could_act_are_refused(template: str | None, arguments: str) -> None:
    assert refusal(template, arguments)


@STEADY
@given(template=st.none() | TEXT)
def test_every_command_can_be_called_without_arguments(template: str | None) -> None:
    assert refusal(template, "") is None


@STEADY
@given(template=TEXT, before=TEXT, active=st.sampled_from("$`"), after=TEXT)
def test_no_dollar_and_no_backtick_passes(
    template: str, before: str, active: str, after: str
) -> None:
    assert refusal(template, before + active + after)


@settings(STEADY, max_examples=2 * STEADY.max_examples)
@given(template=TEXT, before=TEXT, after=TEXT, outputs=OUTPUTS)
@example(template="!`a$1`", before="", after="", outputs=[""] * 12)
@example(template="@a$1", before="", after="", outputs=[""] * 12)
@example(template="`$ARGUMENTS`b`", before="", after="!", outputs=[""] * 12)
@example(template="!`a`@$1", before="..", after="", outputs=[","] * 12)
@example(template="!`a`!`b`$ARGUMENTS", before="..", after="", outputs=["@", *[""] * 11])
def test_nothing_of_the_arguments_is_run_or_read(
    template: str, before: str, after: str, outputs: list[str]
) -> None:
    """The mark is in every argument, and in no template."""
    assume(MARK not in template)
    arguments = " ".join(f"{word}{MARK}" for word in f"{before}{MARK}{after}".split(" "))
    if refusal(template, arguments):
        return
    acted_on = (*shell_commands(expand(template, arguments)), *read(template, arguments, outputs))
    assert not [each for each in acted_on if MARK in each]


def assert_same_actions(template: str, arguments: str, outputs: list[str]) -> None:
    assert shell_commands(expand(template, arguments)) == shell_commands(expand(template, ""))
    assert read(template, arguments, outputs) == read(template, "", outputs)


def read(template: str, arguments: str, outputs: list[str]) -> list[str]:
    text = expand(template, arguments)
    assume(len(shell_commands(text)) <= len(outputs))
    return file_references(with_outputs(text, outputs))


@settings(STEADY, max_examples=2 * STEADY.max_examples)
@given(template=TEXT, arguments=TEXT, outputs=OUTPUTS)
@example(template="!`a`!`b`$ARGUMENTS", arguments=". ", outputs=["@", *[""] * 11])
@example(template="!`a`@$1", arguments=".", outputs=[","] * 12)
def test_allowed_arguments_run_and_read_what_the_template_does(
    template: str, arguments: str, outputs: list[str]
) -> None:
    if refusal(template, arguments) is None:
        assert_same_actions(template, arguments, outputs)


@settings(STEADY, max_examples=2 * STEADY.max_examples)
@given(template=TEXT, arguments=TEXT, outputs=OUTPUTS)
def test_the_comparison_alone_suffices(template: str, arguments: str, outputs: list[str]) -> None:
    if not changes_actions(template, arguments):
        assert_same_actions(template, arguments, outputs)


@pytest.mark.parametrize(("template", "arguments"), PATHS)
def test_the_characters_alone_keep_a_name_within_the_directory(
    template: str, arguments: str
) -> None:
    assert forbidden_characters(template, arguments)


@STEADY
@given(text=TEXT)
def test_whoever_mentions_no_file_refers_to_none(text: str) -> None:
    assert mentions_file(text) or not file_references(text)
