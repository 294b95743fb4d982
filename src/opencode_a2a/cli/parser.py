"""The commands and their options, declared once: for the parser, `--help` and shell completion."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__

HELP = "Serve OpenCode, the coding agent, to any A2A client."
SHELLS = ("bash", "zsh", "fish")

UP_HELP = """\
Start OpenCode and the service together. Without a model provider of your own a
built-in demo model answers. Without a token of your own one is made, and kept for
the next time: `opencode-a2a token` shows it.

  cd your-project && opencode-a2a up
  opencode-a2a up path/to/project --port 9000
  opencode-a2a up --install-opencode
  opencode-a2a up --opencodes 4

OpenCode is taken from PATH, from node_modules of the checkout this program runs
from, or from where --install-opencode has put it; never from the workspace, unless
OPENCODE_COMMAND names one there.

One OpenCode uses little more than one core, however much it has to do. On a machine with
more of them, --opencodes 4 starts four, with about half a GB of memory each; each
conversation stays with one of them.
"""

SERVE_HELP = """\
Serve an OpenCode that runs already: the one at OPENCODE_BASE_URL, or at
http://127.0.0.1:4096, where `opencode serve` listens unless told otherwise.

  export A2A_BEARER_TOKEN=$(openssl rand -hex 24)
  opencode-a2a serve

If OpenCode has a password (OPENCODE_SERVER_PASSWORD), set OPENCODE_AUTH_PASSWORD too.
SIGHUP reads the settings again: credentials, limits, permission rules and what is logged
change at once, without ending a stream. systemd can watch the service (Type=notify) and hand it
a socket.
"""

CARD_HELP = """\
Print the Agent Card that these settings would publish; nothing is started. With a
URL, or the name of a configured peer: print that agent's card, and say what is
wrong with it (exit code 8 if something is).

  opencode-a2a card --extended
  opencode-a2a card https://agent.example.com
"""

CALL_HELP = """\
Send a message to any A2A agent and show its answer as it is written. Permissions
and questions are asked here. Ctrl-C cancels the agent's task, a second one leaves.
Without TEXT the message is read from the standard input (`-` in TEXT stands for it,
too); on a terminal a conversation begins.

  opencode-a2a call localhost:8000 "What does this project do?"
  opencode-a2a call localhost:8000 --last "And how is it tested?"
  git diff | opencode-a2a call https://agent.example.com "Review this:" -
  opencode-a2a call reviewer --file report.pdf "Summarize it." > summary.txt

Credentials come from A2A_CLIENT_BEARER_TOKEN or A2A_CLIENT_BASIC_AUTH, for configured
peers from their [peers.NAME] table, and for instances that `up` started here from
their kept token. They go to the named address only, never to another.
"""

EXIT_CODES_HELP = """\
The answer goes to the standard output, everything else to the standard error.
Exit codes: 0 completed, 1 failed, 2 wrong usage or settings, 3 canceled, 4 rejected,
5 waits for input, 6 not authorized, 7 not reachable, 8 not A2A as it should be,
9 timed out, 10 refused by the peer, 130 left with Ctrl-C.
"""

PEERS_HELP = """\
List the configured peers, and whether they answer. They stand in a TOML file: the one
that --config names, or ~/.config/opencode-a2a/peers.toml.

  opencode-a2a peers
  opencode-a2a peers --json

  [peers.reviewer]
  url = "https://agent.example.com"
  bearer_token = "env:REVIEWER_TOKEN"      # or file:/path; never the token itself
"""

OPENAPI_HELP = """\
Print the OpenAPI document that these settings would publish. Nothing is started.

  opencode-a2a openapi > openapi.json
"""

TOKEN_HELP = """\
Without one of these words: print the token that `up` has made for a workspace, or for
a directory inside it. A token of your own (A2A_BEARER_TOKEN) is not shown.

  opencode-a2a token
  curl -H "Authorization: Bearer $(opencode-a2a token)" http://127.0.0.1:8000/tasks
  opencode-a2a token --new        # a new one instead; then restart `up`, or kill -HUP it

With one of them: manage tokens for other callers, in the credentials file. A running
service knows of a change within a second.

  opencode-a2a token create ci --scopes tasks:read,tasks:write --expires 90d
  opencode-a2a token list
  opencode-a2a token rotate ci --overlap 1h
  opencode-a2a token revoke ci
"""

TOKEN_SHOW_HELP = """\
Print the token that `up` has made for a workspace, or for a directory inside it.
`show` may be left out.

  opencode-a2a token show path/to/project
"""

TOKEN_CREATE_HELP = """\
Make a token for a caller and print it. Only its hash is kept, so it is shown this once.
It can be sent as a bearer token, or in the header X-API-Key.

  opencode-a2a token create ci --scopes tasks:read,tasks:write --expires 90d
  opencode-a2a token create ops --scopes admin
"""

TOKEN_LIST_HELP = """\
List the tokens of the credentials file: for whom, for what, until when, and when each
was last used (to a minute). The tokens themselves are nowhere.

  opencode-a2a token list
  opencode-a2a token list --json
"""

TOKEN_ROTATE_HELP = """\
Make a new token in the place of another. Both are valid for a while, so that the caller
can change over without being refused. The new one lasts as long as the one before did,
unless --expires says otherwise.

  opencode-a2a token rotate ci
  opencode-a2a token rotate ci --overlap 24h --expires 90d
"""

TOKEN_REVOKE_HELP = """\
Revoke all tokens of a name. Within a second they are refused, and requests and streams
that were made with them are cut off.

  opencode-a2a token revoke ci
"""

STATUS_HELP = """\
List the running instances of this user: address, workspace, process, version of
OpenCode, and how many tasks are at work.

  opencode-a2a status
  opencode-a2a status --json

With --ready, ask one service whether it can work, such as for the health check of a
container: exit code 0 if it can, 1 if not. Without URL it is the one at A2A_HOST and
A2A_PORT, or at http://127.0.0.1:8000.

  opencode-a2a status --ready
  opencode-a2a status --ready http://127.0.0.1:9000
"""

USAGE_HELP = """\
Print what the tasks of all callers have used, in tokens and dollars: of this month, by
day, caller and model. It is read from the task store, so give it the settings of the
service, and run it as the user that the service runs as.

  opencode-a2a usage
  opencode-a2a usage --from 2026-01-01 --to 2026-01-31 --by principal
  opencode-a2a usage --by day,model --principal alice --csv > usage.csv
"""

NODES_HELP = """\
The services that share a PostgreSQL database. Any of them answers for every task; each works
with its own OpenCode. Give this the settings of one of them.

  opencode-a2a nodes list
  opencode-a2a nodes drain node-2
"""

NODES_LIST_HELP = """\
List the services that share the database, also those that were there within a day.

  opencode-a2a nodes list --json
"""

NODES_DRAIN_HELP = """\
Give a service no new contexts. It stops by itself when its tasks have ended; tasks that wait for
a person count.

  opencode-a2a nodes drain node-2
"""

NODES_RESUME_HELP = """\
Give a service new contexts again.

  opencode-a2a nodes resume node-2
"""

CONFIG_HELP = """\
Look at the settings. Nothing is started.

  opencode-a2a config example > settings.toml
  opencode-a2a config check --config settings.toml
  opencode-a2a config show --config settings.toml
"""

CONFIG_SHOW_HELP = """\
Show every setting with its value, and where that comes from: the environment, a file
in the secrets directory, the TOML file, or the default. Secrets are not shown.

  opencode-a2a config show --changed
  opencode-a2a config show --config settings.toml --json
"""

CONFIG_CHECK_HELP = """\
Check the settings as the start of the service would. Each problem has a line, and then
the exit code is 2. Warnings are what the service would log and start with all the same.

  opencode-a2a config check --config settings.toml --secrets /etc/opencode-a2a/secrets
"""

CONFIG_EXAMPLE_HELP = """\
Print a TOML file with every setting at its default, and what each is for.

  opencode-a2a config example > settings.toml
  opencode-a2a serve --config settings.toml
"""

DOCTOR_HELP = """\
Look whether everything that the service needs is there and works, and say what to do
about what does not: program, settings, database, OpenCode, model, address, peers.
Nothing is changed.

  opencode-a2a doctor
  opencode-a2a doctor path/to/project --no-model
  opencode-a2a doctor --config a2a.toml --json
  opencode-a2a doctor --url https://agent.example.com

Give it the settings that the service has, and run it as the user that the service
runs as. With --url it looks at a running service from outside; the credential is the
one that `call` would use (A2A_CLIENT_BEARER_TOKEN, or the token that `up` keeps).

The model is asked for one word, which costs a few tokens. If the service runs, the
question goes through it, and stays there as a task; --no-model asks nothing.

docs/reference/doctor.md has everything that can be found.
"""

DOCTOR_CODES_HELP = """\
Exit codes: 0 nothing is wrong (there may be warnings, or checks that could not be
made), 1 something is wrong, 2 wrong usage or settings, 130 left with Ctrl-C.
"""

BACKUP_HELP = """\
Write everything that the service has stored (tasks, their events, sessions, who owns
what) into one file: of SQLite a database file, of PostgreSQL an archive of pg_dump,
which must be installed. The service goes on working meanwhile; the file has all that was
acknowledged before the command began. FILE is complete or is not there.

  opencode-a2a backup tasks-$(date +%F).backup
  opencode-a2a backup - | ssh vault 'cat > tasks.backup'

Not in it: tokens, passwords and settings; the workspace and its git worktrees; and what
OpenCode stores itself, which are the conversations of its sessions. FILE holds what
callers and the agent wrote: keep it as safe as the database.
"""

RESTORE_HELP = """\
Put a backup into the database that the settings name. The service must not run. A
backup belongs to its kind of database (SQLite or PostgreSQL) and to its schema. All of
it is restored, or nothing is changed.

  opencode-a2a restore tasks-2026-11-17.backup
  opencode-a2a restore --force tasks-2026-11-17.backup

If the database holds anything, --force is needed, and a backup of that is made first.
"""

MIGRATE_HELP = """\
Copy everything into another, empty database, such as from SQLite to PostgreSQL. Stop the
service first. Both sides are compared, and their digests are printed. The database it
came from is not changed: start the service on one of them only.

  opencode-a2a migrate --to postgresql://a2a@db.example.com/a2a

If it is interrupted, the target stays empty. PostgreSQL takes the password from
PGPASSWORD or ~/.pgpass, where no list of processes shows it.
"""

DB_HELP = """\
Look after the database: check it, get one task out of it, or remove what is old or
belongs to one caller. All of these may run beside the service.

  opencode-a2a db check
  opencode-a2a db purge --before 90d
"""

DB_CHECK_HELP = """\
Look for damage: in the file itself, and in what it says. The events of every task must
have no gaps and must add up to what is stored of the task; requests must belong to their
task. Nothing is changed. The exit code is 1 if something is wrong.

  opencode-a2a db check
"""

DB_EXPORT_HELP = """\
Print one task as JSON, one object in a line: the task as A2A 1.0 shows it, each of its
events as A2A 1.0 shows it, and the rows as they are stored. For a report of a fault; it
holds what the caller and the agent wrote.

  opencode-a2a db export 4f2c… > task.jsonl
"""

DB_PURGE_HELP = """\
Remove ended tasks that are older than WHEN, or everything of a caller. First it shows
how much that is, and asks. It removes little at a time, so that a running service does
not wait. WHEN is a date, a time, or an age: 2026-11-01, 2026-11-01T12:00Z, 90d, 12h.

  opencode-a2a db purge --before 90d
  opencode-a2a db purge --principal alice
  opencode-a2a db purge --principal alice --before 30d --yes

With --principal alone also open tasks (they are stopped first), permissions that were
granted, and conversations with peers are removed. OpenCode keeps its sessions, and git
the worktrees: they stay closed to all callers. Take the caller's credential away first.
"""

COMPLETION_HELP = """\
Print what makes the shell complete commands and options. Put one of these lines into
the file that your shell reads when it starts (for zsh after `compinit`):

  source <(opencode-a2a completion bash)      # ~/.bashrc
  source <(opencode-a2a completion zsh)       # ~/.zshrc
  opencode-a2a completion fish | source       # ~/.config/fish/config.fish
"""

DEPLOY_HELP = """\
Run instances that stay: many on a machine with systemd, each with a Linux user,
a workspace, ports and secrets of its own, or in the background for you alone.

  sudo opencode-a2a deploy init
  sudo opencode-a2a deploy create alpha
  opencode-a2a deploy light start demo        # without root

Each command shows what it will do and asks first; --dry-run only shows it, --yes
does not ask. docs/agent_deploy_sop.md leads through it, step by step.
"""

INIT_HELP = """\
Prepare this machine: install a release below /opt/opencode-a2a and the systemd units.
A release is the service and the OpenCode it works with. It is tried before it is used.

  sudo opencode-a2a deploy init
  sudo opencode-a2a deploy init --from opencode_a2a-0.1.0-py3-none-any.whl
  sudo opencode-a2a deploy init --opencode /usr/local/bin/opencode --python python3.12
"""

CREATE_HELP = """\
Make an instance: the user oca-NAME, a workspace in /var/lib/opencode-a2a/NAME,
settings in /etc/opencode-a2a/NAME, two ports, and the units that run it. At the end
it is asked a question. Its secrets are files that you provide, for root alone:

  umask 077; install -d -m 700 /etc/opencode-a2a/alpha/secrets
  random="import secrets; print(secrets.token_urlsafe(32))"
  python3 -c "$random" > /etc/opencode-a2a/alpha/secrets/A2A_BEARER_TOKEN
  python3 -c "$random" > /etc/opencode-a2a/alpha/secrets/OPENCODE_SERVER_PASSWORD
  sudo opencode-a2a deploy create alpha

Files whose names begin with A2A_ go to the service, all others, such as
ANTHROPIC_API_KEY, to OpenCode alone. With ENABLE_SECRET_PERSISTENCE=true in the
environment the command makes the first two itself, and writes what --secret names.
"""

UPDATE_HELP = """\
Make instances what they should be, after you changed their settings or secrets, or
with other options. Only what has changed is restarted. Without a name: all of them.

  sudo opencode-a2a deploy update alpha --port 8020
  sudo opencode-a2a deploy update
"""

LIST_HELP = """\
List the instances, their state, address and release.

  sudo opencode-a2a deploy list --json
"""

DEPLOY_STATUS_HELP = """\
Show the units of an instance and whether it is ready. Exit code 1 if it is not.

  sudo opencode-a2a deploy status alpha
  sudo opencode-a2a deploy status alpha --ask
"""

DEPLOY_DOCTOR_HELP = """\
Run `opencode-a2a doctor` for an instance: with its settings and credentials, as its user.

  sudo opencode-a2a deploy doctor alpha
"""

DEPLOY_LOGS_HELP = """\
Show the log of an instance: the service and its OpenCode.

  sudo opencode-a2a deploy logs alpha --follow
"""

RESTART_HELP = """\
Restart the service of an instance. The agent's work goes on, and connections wait.

  sudo opencode-a2a deploy restart alpha
  sudo opencode-a2a deploy restart alpha --opencode-too      # this ends its work
"""

UPGRADE_HELP = """\
Install another release beside the present one, try it, then switch one instance after
the other. One that does not work goes back at once, and the rest stays as it is.

  sudo opencode-a2a deploy upgrade --from path/to/checkout
  sudo opencode-a2a deploy upgrade --from opencode_a2a-0.2.0-py3-none-any.whl alpha
"""

ROLLBACK_HELP = """\
Go back to the release before. If the newer release has another schema, the service of
the older one refuses the database: restore the backup from before the upgrade.

  sudo opencode-a2a deploy rollback
  sudo opencode-a2a deploy rollback alpha
"""

REMOVE_HELP = """\
Remove an instance. Its data (workspace, tasks, settings, secrets) and its user stay,
unless you say --purge.

  sudo opencode-a2a deploy remove alpha --dry-run
  sudo opencode-a2a deploy remove alpha --purge
"""

UNINSTALL_HELP = """\
Remove everything that `deploy` has made, and nothing else: all instances, units,
releases. Data stays, unless you say --purge.

  sudo opencode-a2a deploy uninstall --dry-run
  sudo opencode-a2a deploy uninstall --purge
"""

LIGHT_HELP = """\
Run `opencode-a2a up` in the background, for you alone and without root: it is
restarted when it crashes, and its log is kept small. It survives your logout; where
`systemd --user` runs it, `loginctl enable-linger` is needed for that.

  opencode-a2a deploy light start demo --port 8000 --directory path/to/project
  opencode-a2a deploy light status demo
  opencode-a2a deploy light stop demo
"""

LIGHT_COMMAND_HELP = """\
{what}

  opencode-a2a deploy light {word} demo
"""

PUSH_HELP = """\
Push notifications of a service (A2A_PUSH=true): who is told about a task, and
what receivers have not taken.

  opencode-a2a push list TASK
  opencode-a2a push dead
  opencode-a2a push redeliver
"""

PUSH_LIST_HELP = """\
List the push configs of a task. Their secrets are not shown.

  opencode-a2a push list TASK --service https://agent.example.com
"""

PUSH_DEAD_HELP = """\
List the notifications that receivers have not taken in time (A2A_PUSH_RETRY_HOURS).

  opencode-a2a push dead
  opencode-a2a push dead TASK --json
"""

PUSH_REDELIVER_HELP = """\
Send these notifications again. Exit code 1 if one is not taken this time either.

  opencode-a2a push redeliver
  opencode-a2a push redeliver TASK
"""

SETTINGS_HELP = """\
Settings come from the environment, from files in a secrets directory, and from a
TOML file, in this order; docs/reference/settings.md has them all. The most useful:

  A2A_BEARER_TOKEN        the token clients must present
  A2A_HOST, A2A_PORT      where to listen (127.0.0.1, 8000)
  OPENCODE_BASE_URL       the OpenCode server to use with `serve`
  OPENCODE_WORKSPACE_ROOT the directory the agent works in (the current one)
"""


@dataclass(frozen=True, slots=True)
class Option:
    name: str  # without dashes it stands for itself
    help: str
    value: str | None = None  # what it takes; None: it is a switch
    type: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    many: bool = False  # it may be given several times
    required: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    help: str
    about: str
    options: tuple[Option, ...] = ()
    has_settings: bool = True
    more: str | None = None  # what follows the options, instead of the most useful settings
    commands: tuple[Command, ...] = ()  # one of them must follow: `config show`


SECRETS = Option("--secrets", "directory with one file per secret", value="DIR", type=Path)
SOURCES = (Option("--config", "settings in TOML", value="FILE", type=Path), SECRETS)
CONFIG = (
    *SOURCES,
    Option("--host", "address to listen on (A2A_HOST)", value="HOST"),
    Option("--port", "port to listen on (A2A_PORT)", value="PORT", type=int),
)
PEERS = (
    Option("--config", "settings in TOML, with [peers.NAME]", value="FILE", type=Path),
    SECRETS,
)
CALL = (
    *PEERS,
    Option("--file", "attach a file", value="FILE", type=Path, many=True),
    Option("--last", "continue the last conversation with this peer"),
    Option("--context", "continue this context", value="ID"),
    Option("--task", "answer this task; without TEXT: watch it", value="ID"),
    Option("--session", "continue this OpenCode session", value="ID"),
    Option("--model", "the model for this message", value="PROVIDER/MODEL"),
    Option("--agent", "the OpenCode agent for this message", value="NAME"),
    Option("--yes", "allow whatever the agent asks permission for"),
    Option("--no", "refuse whatever the agent asks permission for"),
    Option("--ask", "ask on the terminal, also where input or output is none"),
    Option(
        "--output",
        "what to print: the answer, the task at its end, or each event",
        value="WHAT",
        choices=("answer", "task", "events"),
    ),
    Option("--json", "the same as --output events: JSON, one event per line"),
    Option("--no-stream", "ask for the task now and then instead of streaming it"),
    Option("--save", "write the files that the agent sends there", value="DIR", type=Path),
    Option("--timeout", "cancel the task if it takes longer", value="SECONDS", type=float),
    Option("--header", "send this header field, 'Name: value'", value="FIELD", many=True),
    Option("--extension", "activate this extension of A2A", value="URI", many=True),
    Option("peer", "address or name of an agent", value="PEER", required=True),
    Option("text", "the message", value="TEXT", many=True),
)
DIRECTORY = Option("directory", "the workspace (the current directory)", value="DIR", type=Path)
INSTANCE_NAME = Option("name", "the instance", value="NAME", required=True)
INSTANCE_NAMES = Option("names", "the instances (all)", value="NAME", many=True)
CONFIRM = (
    Option("--yes", "do not ask"),
    Option("--dry-run", "show the plan and change nothing"),
)
NO_MODEL = Option("--no-model", "do not ask the model anything")
AS_JSON = Option("--json", "as JSON, for programs")
NO_QUESTION = Option("--no-question", "do not ask it a question at the end")
RELEASE = (
    Option("--from", "a checkout, or a wheel built from one (this checkout)", value="SOURCE"),
    Option("--release", "its name (its version and commit)", value="NAME"),
    Option("--python", "the Python to use (/usr/bin/python3)", value="PYTHON"),
    Option("--opencode", "the OpenCode to use (that of the checkout, or in PATH)", value="FILE"),
)
INSTANCE = (
    Option("--host", "address to listen on (127.0.0.1)", value="HOST"),
    Option("--port", "port to listen on (the next free one from 8010)", value="PORT", type=int),
    Option("--opencode-port", "port of its OpenCode (10 000 more)", value="PORT", type=int),
    Option("--public-url", "address in the Agent Card, behind a proxy", value="URL"),
    Option("--workspace", "a directory of yours that its user can write to", value="DIR"),
    Option("--memory", "what OpenCode and its tools may use (4G)", value="SIZE"),
    Option("--tasks", "how many processes and threads they may have (1024)", value="N", type=int),
    Option("--secret", "write this variable of the environment too", value="VARIABLE", many=True),
    NO_QUESTION,
    *CONFIRM,
)
STORE = (
    *SOURCES,
    Option("--directory", "the workspace (the current directory)", value="DIR", type=Path),
)
FILE = Option("file", "the backup, - for standard input or output", value="FILE", required=True)
DATABASE = Command(
    "db",
    "check, export from or clean the database",
    DB_HELP,
    commands=(
        Command("check", "look for damage", about=DB_CHECK_HELP, options=STORE),
        Command(
            "export",
            "print a task and its events as JSON lines",
            about=DB_EXPORT_HELP,
            options=(*STORE, Option("task", "its id", value="TASK", required=True)),
        ),
        Command(
            "purge",
            "remove old tasks, or everything of a caller",
            about=DB_PURGE_HELP,
            options=(
                *STORE,
                Option("--before", "ended tasks that ended earlier", value="WHEN"),
                Option("--principal", "what belongs to this caller", value="NAME"),
                Option("--yes", "do not ask"),
            ),
        ),
    ),
)
LOGS = (
    Option("--follow", "wait for more"),
    Option("--lines", "how many (100)", value="N", type=int),
)
LIGHT = (
    *CONFIG,
    Option("--directory", "the workspace (the current directory)", value="DIR", type=Path),
)
SERVICE = (
    *PEERS,
    Option("--service", "address or name (http://127.0.0.1:8000)", value="URL"),
)
JSON_OUTPUT = Option("--json", "as JSON, for programs")
PUSH_TASK = Option("task", "only of this task", value="TASK")
PURGE = Option("--purge", "also remove data, for ever")


def _number_of_opencodes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError("must be a number from 1 to 64")
    return int(text)


def _light(word: str, what: str, *options: Option) -> Command:
    about = LIGHT_COMMAND_HELP.format(what=what, word=word)
    return Command(word, what, about=about, options=(*options, INSTANCE_NAME), has_settings=False)


def _deploy(word: str, what: str, about: str, *options: Option) -> Command:
    return Command(word, what, about=about, options=options, has_settings=False)


TOKEN_NAME = Option("name", "the name of the token", value="NAME", required=True)
EXPIRES = Option("--expires", "after this time, such as 90d or 12h (never)", value="TIME")
CREDENTIALS = Option(
    "--file", "the credentials file (A2A_CREDENTIALS_FILE)", value="FILE", type=Path
)


def _token(word: str, what: str, about: str, *options: Option) -> Command:
    return Command(
        word, what, about=about, options=(*SOURCES, CREDENTIALS, *options), has_settings=False
    )


DEPLOY = Command(
    "deploy",
    "run instances that stay: with systemd, or in the background",
    DEPLOY_HELP,
    has_settings=False,
    commands=(
        _deploy("init", "prepare this machine", INIT_HELP, *RELEASE, *CONFIRM),
        _deploy("create", "make an instance", CREATE_HELP, *INSTANCE, INSTANCE_NAME),
        _deploy(
            "update",
            "apply changed settings, secrets or options",
            UPDATE_HELP,
            Option("--release", "switch to this release", value="NAME"),
            *INSTANCE,
            INSTANCE_NAMES,
        ),
        _deploy("list", "list the instances", LIST_HELP, Option("--json", "as JSON, for programs")),
        _deploy(
            "status",
            "show whether an instance works",
            DEPLOY_STATUS_HELP,
            Option("--ask", "ask it a question, too"),
            INSTANCE_NAME,
        ),
        _deploy(
            "doctor",
            "find out what is wrong with an instance",
            DEPLOY_DOCTOR_HELP,
            *(NO_MODEL, AS_JSON, INSTANCE_NAME),
        ),
        _deploy("logs", "show the log of an instance", DEPLOY_LOGS_HELP, *LOGS, INSTANCE_NAME),
        _deploy(
            "restart",
            "restart the service of an instance",
            RESTART_HELP,
            Option("--opencode-too", "its OpenCode, too"),
            INSTANCE_NAME,
        ),
        _deploy(
            "upgrade",
            "switch to another release",
            UPGRADE_HELP,
            *(*RELEASE, NO_QUESTION, *CONFIRM, INSTANCE_NAMES),
        ),
        _deploy(
            "rollback",
            "go back to the release before",
            ROLLBACK_HELP,
            *(NO_QUESTION, *CONFIRM, INSTANCE_NAMES),
        ),
        _deploy("remove", "remove an instance", REMOVE_HELP, PURGE, *CONFIRM, INSTANCE_NAME),
        _deploy("uninstall", "remove everything", UNINSTALL_HELP, PURGE, *CONFIRM),
        Command(
            "light",
            "run in the background, without root",
            LIGHT_HELP,
            has_settings=False,
            commands=(
                _light("start", "start it", *LIGHT),
                _light("stop", "stop it"),
                _light("restart", "restart it, with new options if given", *LIGHT),
                _light("status", "show whether it runs, and where"),
                _light("logs", "show its log", *LOGS),
            ),
        ),
    ),
)
COMMANDS = (
    Command(
        "up",
        "start OpenCode and the service together (the quick way)",
        about=UP_HELP,
        options=(
            *CONFIG,
            Option("--install-opencode", "install the OpenCode this version is tested with first"),
            Option(
                "--opencodes",
                "start so many OpenCodes, which share the work (1 to 64)",
                value="N",
                type=_number_of_opencodes,
            ),
            DIRECTORY,
        ),
    ),
    Command("serve", "serve an OpenCode that runs already", about=SERVE_HELP, options=CONFIG),
    Command(
        "token",
        "show the token that `up` keeps, or manage those of other callers",
        TOKEN_HELP,
        has_settings=False,
        commands=(
            Command(
                "show",
                "show the token that `up` keeps for a workspace",
                about=TOKEN_SHOW_HELP,
                options=(Option("--new", "replace it; then restart `up`"), DIRECTORY),
                has_settings=False,
            ),
            _token(
                "create",
                "make a token for a caller",
                TOKEN_CREATE_HELP,
                Option("--principal", "the caller (its NAME)", value="PRINCIPAL"),
                Option("--scopes", "scopes or roles, with commas between them", value="SCOPES"),
                EXPIRES,
                TOKEN_NAME,
            ),
            _token(
                "list",
                "list the tokens",
                TOKEN_LIST_HELP,
                Option("--json", "as JSON, for programs"),
            ),
            _token(
                "rotate",
                "replace a token by a new one",
                TOKEN_ROTATE_HELP,
                Option("--overlap", "how long the one before stays valid (1h)", value="TIME"),
                EXPIRES,
                TOKEN_NAME,
            ),
            _token("revoke", "revoke a token", TOKEN_REVOKE_HELP, TOKEN_NAME),
        ),
    ),
    Command(
        "status",
        "list your running instances",
        about=STATUS_HELP,
        options=(
            Option("--json", "as JSON, for programs"),
            Option("--ready", "ask one service whether it can work: exit code 0 or 1"),
            Option("url", "with --ready: the address of the service", value="URL"),
        ),
        has_settings=False,
    ),
    Command(
        "usage",
        "print what callers have used",
        about=USAGE_HELP,
        options=(
            *SOURCES,
            Option("--from", "the first day, in UTC (the first of the month)", value="DAY"),
            Option("--to", "the last day (today)", value="DAY"),
            Option("--by", "what to sum by (day,principal,model)", value="KEYS"),
            Option("--principal", "only this caller", value="NAME"),
            Option("--csv", "as CSV, for spreadsheets"),
            Option("--json", "as JSON, for programs"),
            DIRECTORY,
        ),
    ),
    Command(
        "nodes",
        "list or drain the services that share a database",
        NODES_HELP,
        commands=(
            Command(
                "list",
                "list the services that share the database",
                about=NODES_LIST_HELP,
                options=(*SOURCES, Option("--json", "as JSON, for programs")),
            ),
            Command(
                "drain",
                "let a service finish its tasks, and stop",
                about=NODES_DRAIN_HELP,
                options=(*SOURCES, Option("node", "its name", value="NAME", required=True)),
            ),
            Command(
                "resume",
                "give a service new work again",
                about=NODES_RESUME_HELP,
                options=(*SOURCES, Option("node", "its name", value="NAME", required=True)),
            ),
        ),
    ),
    Command(
        "config",
        "show, check or begin the settings",
        CONFIG_HELP,
        commands=(
            Command(
                "show",
                "show every setting, and where it comes from",
                about=CONFIG_SHOW_HELP,
                options=(
                    *SOURCES,
                    Option("--changed", "only those that have not their default"),
                    Option("--json", "as JSON, for programs"),
                ),
            ),
            Command(
                "check",
                "check the settings as the start would",
                about=CONFIG_CHECK_HELP,
                options=SOURCES,
            ),
            Command(
                "example",
                "print a TOML file with every setting",
                CONFIG_EXAMPLE_HELP,
                has_settings=False,
            ),
        ),
    ),
    Command(
        "card",
        "print the Agent Card",
        about=CARD_HELP,
        options=(
            *CONFIG,
            Option("--extended", "what clients see who have logged in"),
            Option("peer", "another agent's address or name", value="PEER"),
        ),
    ),
    Command("openapi", "print the OpenAPI document", about=OPENAPI_HELP, options=CONFIG),
    DEPLOY,
    Command(
        "backup", "write all stored data into a file", about=BACKUP_HELP, options=(*STORE, FILE)
    ),
    Command(
        "restore",
        "put a backup into the database",
        about=RESTORE_HELP,
        options=(*STORE, Option("--force", "also if the database holds something"), FILE),
    ),
    Command(
        "migrate",
        "copy all stored data into another database",
        about=MIGRATE_HELP,
        options=(
            *STORE,
            Option("--to", "the URL of the other database", value="URL", required=True),
        ),
    ),
    DATABASE,
    Command(
        "call",
        "send a message to an agent",
        about=CALL_HELP,
        options=CALL,
        has_settings=False,
        more=EXIT_CODES_HELP,
    ),
    Command(
        "peers",
        "list configured peers",
        about=PEERS_HELP,
        options=(*PEERS, Option("--json", "as JSON, for programs")),
        has_settings=False,
    ),
    Command(
        "push",
        "look at push notifications",
        PUSH_HELP,
        has_settings=False,
        commands=(
            Command(
                "list",
                "list the push configs of a task",
                about=PUSH_LIST_HELP,
                options=(
                    *SERVICE,
                    JSON_OUTPUT,
                    Option("task", "the task", value="TASK", required=True),
                ),
                has_settings=False,
            ),
            Command(
                "dead",
                "list what receivers have not taken",
                about=PUSH_DEAD_HELP,
                options=(*SERVICE, JSON_OUTPUT, PUSH_TASK),
                has_settings=False,
            ),
            Command(
                "redeliver",
                "send it again",
                about=PUSH_REDELIVER_HELP,
                options=(*SERVICE, PUSH_TASK),
                has_settings=False,
            ),
        ),
    ),
    Command(
        "doctor",
        "find out what is wrong, and what to do",
        about=DOCTOR_HELP,
        options=(
            *CONFIG,
            Option("--url", "look at the service at this address, from outside", value="URL"),
            *(NO_MODEL, AS_JSON),
            DIRECTORY,
        ),
        has_settings=False,
        more=DOCTOR_CODES_HELP,
    ),
    Command(
        "completion",
        "print the completion for a shell",
        about=COMPLETION_HELP,
        options=(Option("shell", "which shell", value="SHELL", choices=SHELLS),),
        has_settings=False,
    ),
)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "opencode-a2a",
        description=HELP,
        epilog=SETTINGS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"opencode-a2a {__version__}")
    _add_commands(made, COMMANDS)
    return made


def all_commands(
    commands: Sequence[Command] = COMMANDS, before: str = ""
) -> Iterator[tuple[str, Command]]:
    """Every command by all its words, such as `config show`; a group comes before its commands."""
    for each in commands:
        words = f"{before} {each.name}".strip()
        yield words, each
        yield from all_commands(each.commands, words)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments. Words of a message may stand before, between and after its options."""
    made = parser()
    arguments, rest = made.parse_known_args(_with_show(argv))
    if rest and arguments.command == "call" and not any(word.startswith("--") for word in rest):
        arguments.text += rest
    elif rest:
        made.error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def _with_show(argv: Sequence[str] | None) -> list[str]:
    """`token` alone, or with a directory, means `token show`."""
    given = list(sys.argv[1:] if argv is None else argv)
    token = next(each for each in COMMANDS if each.name == "token")
    words = {"-h", "--help", *(each.name for each in token.commands)}
    if given[:1] == ["token"] and not words & set(given[1:2]):
        given.insert(1, "show")
    return given


def _add_commands(
    parser: argparse.ArgumentParser, commands: Sequence[Command], before: str = ""
) -> None:
    """`command` of the parsed arguments is all words of the command, such as `config show`."""
    made = parser.add_subparsers(metavar="COMMAND", required=True)
    for each in commands:
        command = made.add_parser(
            each.name,
            help=each.help,
            description=each.about,
            epilog=SETTINGS_HELP if each.has_settings else each.more,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        words = f"{before} {each.name}".strip()
        command.set_defaults(command=words)
        for option in each.options:
            _add_option(command, option)
        if each.commands:
            _add_commands(command, each.commands, words)


def _add_option(command: argparse.ArgumentParser, option: Option) -> None:
    if option.value is None:
        command.add_argument(option.name, action="store_true", help=option.help)
        return
    how: dict[str, Any] = {"help": option.help}
    if option.choices:
        how["choices"] = option.choices
    else:
        how |= {"metavar": option.value, "type": option.type}
    if option.name.startswith("--"):
        how |= {"action": "append", "default": []} if option.many else {}
        how |= {"required": True} if option.required else {}
    elif option.many:
        how["nargs"] = "*"
    elif not option.required and not option.choices:
        how["nargs"] = "?"
    command.add_argument(option.name, **how)
