"""What is right and what is wrong, decided from values alone; nothing here looks at anything.

A finding stands beside the function that finds it. Their names are documented and stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from ..config import MIN_SECRET_LENGTH, SECRET_COMMAND
from ..domain.release import SUPPORTED, TRIED, Release
from ..store.database import MIN_FREE_BYTES
from ..store.examine import StoreFacts
from ..store.schema import SCHEMA
from .verdict import Finding, Level, Verdict, fine, found

if TYPE_CHECKING:  # a service that starts does without
    from ..deploy.drift import Drift

WARNING, ERROR = Level.WARNING, Level.ERROR

# -- this program

TESTED_PYTHONS = ((3, 11), (3, 13))  # the oldest and the newest

PYTHON_UNTESTED = Finding(
    "python.untested",
    WARNING,
    means="The Python is newer than those this version was tested with.",
    fix="Use a tested Python if something behaves strangely.",
)


def judge_python(version: tuple[int, int, int]) -> Verdict:
    shown, newest = ".".join(map(str, version)), TESTED_PYTHONS[1]
    if version[:2] > newest:
        tested = f"tested are 3.11 to {newest[0]}.{newest[1]}"
        return found(PYTHON_UNTESTED, f"Python {shown}; {tested}.")
    return fine(f"Python {shown}.")


PACKAGE_MISSING = Finding(
    "packages.missing",
    ERROR,
    means="A package is not installed that this program needs.",
    fix="Install the program again, in a virtual environment of its own.",
)
PACKAGE_OTHER = Finding(
    "packages.other_version",
    WARNING,
    means="A package has a version that this program is not made for.",
    fix="Install the program again, in a virtual environment of its own: another program may have "
    "changed the packages of this one.",
)


def judge_packages(version: str, installed: Mapping[str, str | None]) -> Verdict:
    """`installed`: the version of every package, by the requirement that it has to meet."""
    packages = [(Requirement(each), has) for each, has in installed.items()]
    if missing := [required.name for required, has in packages if has is None]:
        return found(PACKAGE_MISSING, f"Not installed: {', '.join(missing)}.")
    other = [
        f"{required.name} {has}, needed is {required.specifier}"
        for required, has in packages
        if has is not None and not required.specifier.contains(has, prereleases=True)
    ]
    if other:
        return found(PACKAGE_OTHER, f"{'; '.join(other)}.")
    return fine(f"opencode-a2a {version} with the {len(packages)} packages that it needs.")


# -- files and credentials

FILE_READABLE = Finding(
    "files.readable",
    ERROR,
    means="Every user of this machine can read or change a file with a secret. (A directory above "
    "it that they cannot enter would protect it.)",
    fix="`chmod 600` the file.",
)
FILE_GROUP_READABLE = Finding(
    "files.group_readable",
    WARNING,
    means="The group of a file with a secret can read or change it.",
    fix="`chmod 600` the file, unless the group is meant to read it.",
)


def judge_secret_files(modes: Mapping[Path, int]) -> Verdict:
    """`modes`: what each may be used for, as far as the directories above it let others in."""
    if not modes:
        return fine("No secret is kept in a file.")
    everybody = [path for path, mode in modes.items() if mode & 0o007]
    if everybody:
        names = ", ".join(map(str, everybody))
        return found(FILE_READABLE, f"Every user can use {names}.", _chmod(everybody))
    group = [path for path, mode in modes.items() if mode & 0o070]
    if group:
        names = ", ".join(map(str, group))
        fix = f"{_chmod(group)}, unless the group is meant to read it."
        return found(FILE_GROUP_READABLE, f"The group can use {names}.", fix)
    files = "1 file with secrets is" if len(modes) == 1 else f"{len(modes)} files with secrets are"
    return fine(f"{files} for this user only.")


def _chmod(paths: Sequence[Path]) -> str:
    return f"chmod 600 {' '.join(map(str, paths))}"


CREDENTIAL_NONE = Finding(
    "credentials.none",
    ERROR,
    means="No credential is configured: `serve` refuses to start. (`up` makes a token.)",
    fix="Set A2A_BEARER_TOKEN, A2A_STATIC_AUTH_CREDENTIALS, A2A_OIDC_ISSUER or A2A_MTLS_HEADER; or "
    "make a token with `opencode-a2a token create`.",
)
CREDENTIAL_SHORT = Finding(
    "credentials.short",
    WARNING,
    means=f"A token or password has fewer than {MIN_SECRET_LENGTH} characters. (Where others than "
    f"this "
    "machine can reach the service, it refuses to start with one.)",
    fix=f"Make a better one: `{SECRET_COMMAND}`",
)
CREDENTIAL_REPEATS = Finding(
    "credentials.repeats",
    WARNING,
    means="A token or password is long but made of very few different characters.",
    fix=f"Make a better one: `{SECRET_COMMAND}`",
)
MIN_DIFFERENT = 6  # characters; of 30,000 random tokens of 16 hexadecimal digits one has fewer


def judge_credentials(
    secrets: Mapping[str, str], *, makes_one: bool, others: Sequence[str] = ()
) -> Verdict:
    """`secrets`: by the names of their settings. `makes_one`: as `up` does where there is none.

    `others`: how callers log in without a secret of the settings.
    """
    if not secrets and others:
        return fine(f"Callers log in with {', '.join(others)}.")
    if not secrets and makes_one:
        return fine("None is configured; `up` makes a token.")
    if not secrets:
        return found(CREDENTIAL_NONE, "No credential is configured.")
    short = [name for name, value in secrets.items() if len(value.strip()) < MIN_SECRET_LENGTH]
    if short:
        says = f"Fewer than {MIN_SECRET_LENGTH} characters: {', '.join(short)}."
        return found(CREDENTIAL_SHORT, says)
    repeats = [name for name, value in secrets.items() if len(set(value)) < MIN_DIFFERENT]
    if repeats:
        return found(CREDENTIAL_REPEATS, f"Easy to guess: {', '.join(repeats)}.")
    return fine(f"{len(secrets)} configured, {MIN_SECRET_LENGTH} characters or more.")


# -- the database

STORE_UNUSABLE = Finding(
    "store.unusable",
    ERROR,
    means="The database cannot be read or written, or its directory does not exist.",
    fix="Mend the rights or the disk, or name another database with A2A_TASK_STORE_DATABASE_URL.",
)
STORE_DAMAGED = Finding(
    "store.damaged",
    ERROR,
    means="The file is no SQLite database, or is damaged.",
    fix="Stop the service, move the file away and restore a backup of it.",
)


def judge_store_access(facts: StoreFacts) -> Verdict:
    where = "the database server" if facts.file is None else str(facts.file)
    if facts.damage is not None:
        return found(STORE_DAMAGED, f"{where} is damaged: {facts.damage}.")
    if facts.problem is not None:
        return found(STORE_UNUSABLE, f"The database cannot be used. {facts.problem}.")
    if not facts.exists:
        kept = f"{where} will be made" if facts.file else "tasks are kept in memory only"
        return fine(f"There is no database yet: {kept}.")
    return fine(f"{where} takes writes.")


STORE_FOREIGN = Finding(
    "store.foreign",
    ERROR,
    means="Another program keeps its tasks in this database.",
    fix="Name another file or database with A2A_TASK_STORE_DATABASE_URL.",
)
STORE_SCHEMA = Finding(
    "store.schema",
    ERROR,
    means="Another version of this program wrote the database, with another schema: the service "
    "refuses to start on it.",
    fix="Run the version that wrote it, or name another database with A2A_TASK_STORE_DATABASE_URL.",
)


def judge_schema(facts: StoreFacts) -> Verdict:
    if not facts.exists:
        return fine(f"Schema {SCHEMA} will be made.")
    if facts.schema is None and facts.has_tasks:
        return found(STORE_FOREIGN, "There is a table `tasks` that this program has not made.")
    if facts.schema is not None and facts.schema != SCHEMA:
        age = "newer" if facts.schema > SCHEMA else "older"
        says = f"The schema is {facts.schema}, {age} than {SCHEMA}, which this version needs."
        return found(STORE_SCHEMA, says)
    return fine(f"Schema {SCHEMA}, that of this version.")


STORE_READABLE = Finding(
    "store.readable",
    ERROR,
    means="Other users can read or write the files of the database, which hold everything that was "
    "asked and answered. (A service of the same user takes these rights away when it starts.)",
    fix="`chmod 600` the files.",
)


def judge_store_rights(facts: StoreFacts) -> Verdict:
    wide = [path for path, mode in facts.modes.items() if mode & 0o077]
    if wide:
        says = f"Other users can use {', '.join(map(str, wide))}."
        return found(STORE_READABLE, says, _chmod(wide))
    if not facts.modes:
        return fine("There is no file yet." if facts.file else "No file of this machine.")
    return fine("The files are for this user only.")


STORE_FULL = Finding(
    "store.full",
    ERROR,
    means="The disk of the database is full: no task can be taken.",
    fix="Make room on that disk.",
)
STORE_NEARLY_FULL = Finding(
    "store.nearly_full",
    WARNING,
    means="The disk of the database has less than 512 MB left.",
    fix="Make room on that disk, or keep tasks for a shorter time "
    "(A2A_TASK_STORE_RETENTION_SECONDS).",
)
STORE_LARGE = Finding(
    "store.large",
    WARNING,
    means="The database has more than 4 GB.",
    fix="Keep tasks for a shorter time: A2A_TASK_STORE_RETENTION_SECONDS.",
)
LOW_BYTES, LARGE_BYTES = 512_000_000, 4_000_000_000


def judge_store_size(facts: StoreFacts) -> Verdict:
    size, free = _bytes(facts.size), facts.free
    room = "" if free is None else f", {_bytes(free)} free on its disk"
    if free is not None and free < MIN_FREE_BYTES:
        return found(STORE_FULL, f"The disk is full ({_bytes(free)} free).")
    if free is not None and free < LOW_BYTES:
        return found(STORE_NEARLY_FULL, f"Only {_bytes(free)} are free on the disk.")
    if facts.size > LARGE_BYTES:
        return found(STORE_LARGE, f"The database has {size}{room}.")
    return fine(f"{size}{room}.")


def _bytes(number: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if number < 1_000:
            return f"{number} {unit}"
        number //= 1_000
    return f"{number} GB"


# -- the machine

FILES_LOW = Finding(
    "open_files.low",
    WARNING,
    means="The limit for open files allows fewer connections than the service would take.",
    fix="Raise the limit (`LimitNOFILE=` of a systemd unit, `ulimit -Hn`).",
)


def judge_open_files(limit: int | None, needed: int) -> Verdict:
    """`limit`: what the process may raise its limit to; None where there is none."""
    if limit is not None and limit < needed:
        return found(FILES_LOW, f"At most {limit} open files; {needed} are needed.")
    allowed = "any number of" if limit is None else str(limit)
    return fine(f"{allowed} open files; {needed} are needed.")


PORT_TAKEN = Finding(
    "port.taken",
    ERROR,
    means="Another program listens on the service's address.",
    fix="Choose another with A2A_PORT, or stop that program.",
)
PORT_FORBIDDEN = Finding(
    "port.forbidden",
    ERROR,
    means="The service cannot listen on its address: it is none of this machine, or needs rights.",
    fix="Choose another with A2A_HOST and A2A_PORT.",
)

UNITS_MISSING = Finding(
    "units.missing",
    WARNING,
    means="A unit of a deployed instance is not there, or the instance does not start with the "
    "machine.",
    fix="`opencode-a2a deploy update NAME` as root writes it; where there is no instance yet, "
    "`opencode-a2a deploy init`. `--dry-run` shows the steps first.",
)
UNITS_OTHER = Finding(
    "units.other",
    WARNING,
    means="A unit of a deployed instance is not what this version writes: another version wrote "
    "it, somebody has edited it or its rights, or there are secrets that it does not load.",
    fix="`opencode-a2a deploy update NAME` as root writes it again; where there is no instance "
    "yet, `opencode-a2a deploy init`. `--dry-run` shows the steps first. Changes of your own "
    "belong in `systemctl edit`.",
)


def judge_units(drift: Drift | None) -> Verdict:
    if drift is None:
        return fine("`deploy` has made no instance here.")
    count = f"{len(drift.own)} deployed instance{'' if len(drift.own) == 1 else 's'}"
    missing, other = drift.missing, drift.other
    if not missing and not other:
        return fine(f"The units of {count} are those of this version.")
    says = [f"Not there: {', '.join(missing)}."] if missing else []
    says += [f"Not as this version writes it: {', '.join(other)}."] if other else []
    # What is shared is written with any instance, and concerns all of them.
    names = [name for name, each in drift.own.items() if each or drift.shared]
    command = f"update {' '.join(names)}" if names else "init"
    fix = f"sudo opencode-a2a deploy {command} (with --dry-run it only shows what it would do)"
    return found(UNITS_MISSING if missing else UNITS_OTHER, " ".join(says), fix)


CLOCK_WRONG = Finding(
    "clock.wrong",
    ERROR,
    means="The clock is more than a minute off that of another machine, or before this program was "
    "installed. Times in tasks are wrong, and TLS may fail.",
    fix="Let the system set its clock, such as with `timedatectl set-ntp true`.",
)
CLOCK_DRIFTS = Finding(
    "clock.drifts",
    WARNING,
    means="The clock is more than five seconds off that of another machine.",
    fix="Let the system set its clock, such as with `timedatectl set-ntp true`.",
)
MAX_DRIFT, MAX_OFFSET = 5.0, 60.0


def judge_clock(now: float, installed_at: float, offset: float | None) -> Verdict:
    """`offset`: how many seconds the clock of the service is ahead of this one."""
    if now < installed_at - 86_400:
        return found(CLOCK_WRONG, "The clock shows a time before this program was installed.")
    if offset is None:
        return fine("Plausible; nobody answered with a time to compare with.")
    seconds = f"{abs(offset):.0f} s {'behind' if offset > 0 else 'ahead of'}"
    if abs(offset) > MAX_DRIFT:
        finding = CLOCK_WRONG if abs(offset) > MAX_OFFSET else CLOCK_DRIFTS
        return found(finding, f"The clock is {seconds} that of the service.")
    return fine("Agrees with that of the service.")


# -- OpenCode

OPENCODE_MISSING = Finding(
    "opencode.missing",
    ERROR,
    means="There is no OpenCode for `up` to start.",
    fix="`opencode-a2a up --install-opencode` installs one; OPENCODE_COMMAND names one.",
)
OPENCODE_BROKEN = Finding(
    "opencode.broken",
    ERROR,
    means="The OpenCode that `up` would start cannot be run, or is of an unsupported version.",
    fix="Install it again, or name another with OPENCODE_COMMAND.",
)
OPENCODE_UNREACHABLE = Finding(
    "opencode.unreachable",
    ERROR,
    means="Nobody answers at OpenCode's address.",
    fix="Start `opencode serve`, and check OPENCODE_BASE_URL.",
)
OPENCODE_OTHER = Finding(
    "opencode.other_program",
    ERROR,
    means="What answers at OpenCode's address is not OpenCode's API.",
    fix="Check OPENCODE_BASE_URL.",
)
OPENCODE_UNSUPPORTED = Finding(
    "opencode.unsupported",
    ERROR,
    means="The service does not work with this version of OpenCode.",
    fix=f"Use OpenCode {SUPPORTED}. `opencode-a2a up --install-opencode` installs one for `up` "
    "alone.",
)
OPENCODE_UNTESTED = Finding(
    "opencode.untested",
    WARNING,
    means="The version of OpenCode is newer than those that were tested.",
    fix=f"Use {' or '.join(TRIED)} if something behaves strangely.",
)
OPENCODE_LACKS = Finding(
    "opencode.lacks",
    WARNING,
    means="An older OpenCode cannot do something that the service uses.",
    fix="Upgrade OpenCode.",
)


def judge_version(release: Release) -> Verdict:
    says = f"OpenCode {release.version}, tested are {', '.join(TRIED)}."
    if not release.is_supported:
        return found(OPENCODE_UNSUPPORTED, says)
    if release.is_newer_than_tried:
        return found(OPENCODE_UNTESTED, says)
    if older := [each.effect for each in release.lacks if each.only_in is None]:
        return found(OPENCODE_LACKS, f"OpenCode {release.version}. {' '.join(older)}")
    lacks = ", ".join(each.name.replace("_", " ") for each in release.lacks)
    api = f" Its API is that of OpenCode {release.generation}"
    return fine(f"{says}{api}, without {lacks}." if lacks else f"{says}{api}.")


OPENCODE_REFUSES = Finding(
    "opencode.refuses",
    ERROR,
    means="OpenCode has a password, and it is not the one this service has.",
    fix="Set OPENCODE_AUTH_PASSWORD to the OPENCODE_SERVER_PASSWORD that OpenCode was started "
    "with. OpenCode 2 makes one and prints it where it was given none.",
)
OPENCODE_OPEN = Finding(
    "opencode.open",
    ERROR,
    means="OpenCode answers other machines without a password: whoever reaches its port can run "
    "any command as its user.",
    fix="Start OpenCode with OPENCODE_SERVER_PASSWORD and on a loopback address, and set "
    "OPENCODE_AUTH_PASSWORD for this service.",
)
OPENCODE_OPEN_HERE = Finding(
    "opencode.open_here",
    ERROR,
    means="OpenCode answers without a password on a loopback address: every user and program of "
    "this machine can run any command as its user.",
    fix="Start OpenCode with OPENCODE_SERVER_PASSWORD, and set OPENCODE_AUTH_PASSWORD to the same.",
)


@dataclass(frozen=True, slots=True)
class Doors:
    """Who OpenCode lets in."""

    without_password: bool
    with_password: bool | None  # None: nobody here knows the password
    from_elsewhere: bool  # without a password, at an address that is not a loopback one
    managed: bool = False  # started by `up`, which alone knows its password


def judge_password(doors: Doors) -> Verdict:
    if doors.from_elsewhere:
        return found(OPENCODE_OPEN, "OpenCode answers other machines without a password.")
    if doors.without_password:
        return found(OPENCODE_OPEN_HERE, "OpenCode answers without a password, on this machine.")
    if doors.managed:
        return fine("OpenCode wants the password that `up` has made for it.")
    if doors.with_password is None:
        return found(OPENCODE_REFUSES, "OpenCode wants a password, and this service has none.")
    if not doors.with_password:
        return found(OPENCODE_REFUSES, "OpenCode refuses the password of this service.")
    return fine("OpenCode wants a password, and takes ours.")


OPENCODE_NO_EVENTS = Finding(
    "opencode.no_events",
    ERROR,
    means="OpenCode answers, but its events do not arrive: no task would make progress.",
    fix="If a proxy stands between the service and OpenCode, let it pass event streams on at once; "
    "else restart OpenCode.",
)
PROVIDER_NONE = Finding(
    "provider.none",
    ERROR,
    means="OpenCode has no model provider that somebody has configured.",
    fix="Run `opencode auth login` as the user that OpenCode runs as, or set a provider's key.",
)
PROVIDER_UNREADABLE = Finding(
    "provider.unreadable",
    ERROR,
    means="OpenCode cannot read its own configuration.",
    fix="Mend OpenCode's configuration file.",
)
MODEL_FAILED = Finding(
    "model.failed",
    ERROR,
    means="The model did not answer.",
    fix="Check the provider's login and quota, and which model OpenCode uses.",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question to the model."""

    asked: str
    text: str = ""
    problem: str | None = None
    seconds: float = 0.0


def judge_model(answer: Answer) -> Verdict:
    asked = f"Asked “{answer.asked}”"
    if answer.problem is not None:
        return found(MODEL_FAILED, f"{asked}. {answer.problem}")
    words = " ".join(answer.text.split())
    if not words:
        return found(MODEL_FAILED, f"{asked}; the answer was empty.")
    shown = words if len(words) <= 60 else f"{words[:59]}…"
    return fine(f"{asked}; it said “{shown}” after {answer.seconds:.1f} s.")


# -- the service, as clients see it

SITE_UNREACHABLE = Finding(
    "service.unreachable",
    ERROR,
    means="Nobody answers at the address of the service.",
    fix="Start the service, and check A2A_PUBLIC_URL, the proxy and the name.",
)
SITE_NO_CARD = Finding(
    "service.no_card",
    ERROR,
    means="What answers at the address of the service has no Agent Card.",
    fix="Check A2A_PUBLIC_URL, and that the proxy passes every path on to the service.",
)
SITE_NOT_READY = Finding(
    "service.not_ready",
    ERROR,
    means="The service runs and cannot work: its database or its OpenCode is missing.",
    fix="Look at the checks of the database and of OpenCode, on the machine of the service.",
)


def judge_ready(status: int, checks: Mapping[str, bool], problem: str = "") -> Verdict:
    missing = [name for name, works in checks.items() if not works]
    if status != 200:
        what = f" without {' and '.join(missing)}" if missing else ""
        says = f"The service says that it cannot work{what}."
        return found(SITE_NOT_READY, f"{says} {problem}".rstrip())
    return fine("The service says that it can work.")


SITE_OTHER_VERSION = Finding(
    "service.other_version",
    WARNING,
    means="The service that runs is another version than this program.",
    fix="Restart the service, so that the installed version runs.",
)


def judge_site_version(running: str, own: str, lines: Sequence[str]) -> Verdict:
    if running != own:
        says = f"The service runs version {running}; this program is {own}."
        return found(SITE_OTHER_VERSION, says)
    return fine(f"Version {running}, A2A {' and '.join(lines)}.")


SITE_OTHER_CARD = Finding(
    "service.other_card",
    ERROR,
    means="The Agent Card there is not the one that these settings publish: another service "
    "answers, or one with other settings.",
    fix="Restart the service, or check where the proxy sends requests to.",
)


def judge_card(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Verdict:
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    if names:
        says = f"The card there differs from ours in {', '.join(sorted(names))}."
        return found(SITE_OTHER_CARD, says)
    return fine("The card there is ours.")


SITE_OPEN = Finding(
    "service.open",
    ERROR,
    means="Requests without a credential are let in: something in front of the service adds one.",
    fix="Take the credential out of the proxy, or let the proxy ask for a login.",
)
SITE_REFUSES = Finding(
    "service.refuses",
    ERROR,
    means="The service does not accept the credential.",
    fix="Check the credential; after a change of A2A_BEARER_TOKEN the service must be restarted.",
)


def judge_login(without: int, with_login: int | None) -> Verdict:
    """The statuses of a request without and with the credential."""
    if without < 400:
        return found(SITE_OPEN, "A request without a credential was answered.")
    if with_login is None:
        return fine("A request without a credential is refused; none is known here to try.")
    if with_login in (401, 403):
        return found(SITE_REFUSES, f"The credential is refused (HTTP {with_login}).")
    return fine("The credential is accepted, and needed.")


TLS_INVALID = Finding(
    "tls.invalid",
    ERROR,
    means="The certificate is not valid: expired, for another name, or of nobody that is trusted "
    "here.",
    fix="Renew the certificate, with its whole chain; trust an authority of your own by "
    "SSL_CERT_FILE.",
)
TLS_ENDS_NOW = Finding(
    "tls.ends_now",
    ERROR,
    means="The certificate ends within three days.",
    fix="Renew the certificate now, and find out why that did not happen by itself.",
)
TLS_ENDS_SOON = Finding(
    "tls.ends_soon",
    WARNING,
    means="The certificate ends within three weeks.",
    fix="Renew the certificate; if that should happen by itself, look why it did not.",
)
TLS_MISSING = Finding(
    "tls.missing",
    WARNING,
    means="Other machines reach the service by plain HTTP: everybody in between can read the "
    "credential.",
    fix="Put a proxy with TLS in front, and set A2A_PUBLIC_URL to its https address.",
)
TLS_NOW_DAYS, TLS_SOON_DAYS = 3, 21


def judge_certificate(seconds_left: float) -> Verdict:
    days = int(seconds_left // 86_400)
    says = f"The certificate is valid for {days} more day{'' if days == 1 else 's'}."
    if days < TLS_NOW_DAYS:
        return found(TLS_ENDS_NOW, says)
    if days < TLS_SOON_DAYS:
        return found(TLS_ENDS_SOON, says)
    return fine(says)


STREAM_BUFFERED = Finding(
    "stream.buffered",
    ERROR,
    means="Events that the service sent one after the other arrived together: a proxy holds them "
    "back.",
    fix="Switch off response buffering for the service, such as with `proxy_buffering off` in "
    "nginx.",
)
STREAM_CUT = Finding(
    "stream.cut",
    ERROR,
    means="The stream ended before the task.",
    fix="Allow long answers in the proxy, such as with `proxy_read_timeout 1h` in nginx.",
)
# Seconds between two events. What was written within a second, a busy machine may read at once.
MIN_GAP_TO_PRAISE, MIN_GAP_TO_BLAME = 0.2, 1.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event of a stream: when it came, and when the service wrote it, each by its own clock."""

    at: float
    written: float | None  # not every event has a time


def judge_stream(arrivals: Sequence[Arrival], *, ended: bool) -> Verdict | None:
    """None if there was no gap to measure: the answer came too fast."""
    if not ended:
        return found(STREAM_CUT, "The stream ended before the task.")
    timed = [(each.at, each.written) for each in arrivals if each.written is not None]
    if len(timed) < 2:
        return None
    (first_at, first_written), (last_at, last_written) = timed[0], timed[-1]
    written, arrived = last_written - first_written, last_at - first_at
    gaps = f"{arrived:.2f} s between the first event and the last; the service wrote them"
    says = f"{gaps} {written:.2f} s apart."
    if arrived >= written / 2 and written >= MIN_GAP_TO_PRAISE:
        return fine(says)
    return found(STREAM_BUFFERED, says) if written >= MIN_GAP_TO_BLAME else None


# -- peers

PEER_UNREACHABLE = Finding(
    "peers.unreachable",
    WARNING,
    means="A configured peer does not answer.",
    fix="Ask the peer's operator, or correct its `url`.",
)
PEER_REFUSES = Finding(
    "peers.refuses",
    ERROR,
    means="A configured peer answers and cannot be used: its credential is wrong or cannot be "
    "read, or it is no A2A agent.",
    fix="Correct the peer's table in the settings.",
)


def judge_peers(problems: Mapping[str, tuple[bool, str]], count: int) -> Verdict:
    """`problems`: by peer, whether it is the peer's own (it is away), and what it is."""
    if not count:
        return fine("No peer is configured.")
    says = " ".join(f"{name}: {problem}" for name, (_, problem) in problems.items())
    if not problems:
        return fine(f"{count} answer{'s' if count == 1 else ''}.")
    away = all(is_away for is_away, _ in problems.values())
    return found(PEER_UNREACHABLE if away else PEER_REFUSES, says)
