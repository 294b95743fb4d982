"""The Grafana dashboard: panels in rows, each a title, a sentence, and what to ask Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opencode_a2a.observe.metrics import PREFIX

Json = dict[str, Any]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WINDOW = "[$__rate_interval]"
WIDTH = 24  # of the whole dashboard, in Grafana's units


def of(metric: str, labels: str = "") -> str:
    """The series of a metric, of the services that were chosen above the dashboard."""
    name = metric if metric.startswith("process_") else PREFIX + metric
    return f'{name}{{job=~"$job",instance=~"$instance"{"," if labels else ""}{labels}}}'


def rate(metric: str, by: str = "", *, per: int = 1, labels: str = "") -> str:
    """How much a counter grows in so many seconds."""
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({of(metric, labels)}{WINDOW}))" + (f" * {per}" if per > 1 else "")


def total(metric: str, by: str = "", labels: str = "") -> str:
    return f"{f'sum by ({by})' if by else 'sum'} ({of(metric, labels)})"


def quantile(share: float, metric: str, by: str = "") -> str:
    groups = f"le, {by}" if by else "le"
    return (
        f"histogram_quantile({share}, sum by ({groups}) (rate({of(f'{metric}_bucket')}{WINDOW})))"
    )


def both(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """The duration of half, and of nearly all."""
    more = f", {{{{{by}}}}}" if by else ""
    return tuple(
        (quantile(share, metric, by), words + more)
        for share, words in ((0.5, "half"), (0.95, "95 %"))
    )


@dataclass(frozen=True)
class Panel:
    title: str
    about: str
    queries: Sequence[tuple[str, str]]  # with what the legend says
    unit: str = "short"
    type: str = "timeseries"

    def json(self, number: int, place: Json) -> Json:
        options: Json = {"legend": {"displayMode": "list", "placement": "bottom"}}
        if self.type == "stat":
            options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
        return {
            "id": number,
            "type": self.type,
            "title": self.title,
            "description": self.about,
            "datasource": SOURCE,
            "gridPos": place,
            "fieldConfig": {"defaults": {"unit": self.unit, "min": 0}, "overrides": []},
            "options": options,
            "targets": [
                {"refId": chr(65 + i), "expr": query, "legendFormat": legend, "datasource": SOURCE}
                for i, (query, legend) in enumerate(self.queries)
            ],
        }


def stat(title: str, about: str, query: str, unit: str = "short") -> Panel:
    return Panel(title, about, ((query, ""),), unit, "stat")


ROWS: dict[str, Sequence[Sequence[Panel]]] = {
    "Now": [
        [
            stat("At work", "Tasks that agents work on.", total("tasks", labels='state="working"')),
            stat("Wait for a person", "Open requests of agents.", total("interrupts_open")),
            stat(
                "Queue", "Tasks that wait for a slot.", total("queue_depth", labels='reason="slot"')
            ),
            stat("Streams", "Open event streams.", total("streams")),
            stat("OpenCode", "1 where it is connected.", f"min ({of('opencode_connected')})"),
            stat(
                "Cost per hour",
                "In US dollars, at the present rate.",
                rate("cost_dollars_total", per=3600),
                "currencyUSD",
            ),
        ]
    ],
    "Tasks": [
        [
            Panel(
                "By state",
                "Tasks that the service holds.",
                [(total("tasks", "state"), "{{state}}")],
            ),
            Panel(
                "Ended, per minute",
                "By state; a failed one says why.",
                [(rate("tasks_ended_total", "state, problem", per=60), "{{state}} {{problem}}")],
            ),
            Panel(
                "Begun, per minute",
                "New tasks, their turns, and tasks taken over from a process that ended.",
                [
                    (rate("tasks_created_total", per=60), "tasks"),
                    (rate("turns_total", "kind", per=60), "turns ({{kind}})"),
                    (rate("tasks_resumed_total", per=60), "taken over"),
                ],
            ),
        ],
        [
            Panel("To the first token", "Since creation.", both("task_first_token_seconds"), "s"),
            Panel("In the queue", "Until an agent works on it.", both("task_queue_seconds"), "s"),
            Panel("To the end", "With all waiting.", both("task_duration_seconds", "state"), "s"),
        ],
    ],
    "Tokens and costs": [
        [
            Panel(
                "Tokens per second",
                "As the providers report them.",
                [(rate("tokens_total", "kind"), "{{kind}}")],
            ),
            Panel(
                "Cost per hour by model",
                "In US dollars.",
                [(rate("cost_dollars_total", "model", per=3600), "{{model}}")],
                "currencyUSD",
            ),
            Panel(
                "Cost in 24 hours by caller",
                "In US dollars.",
                [
                    (
                        f"sum by (principal) (increase({of('cost_dollars_total')}[24h]))",
                        "{{principal}}",
                    )
                ],
                "currencyUSD",
            ),
        ]
    ],
    "What agents do": [
        [
            Panel(
                "Tool calls per minute",
                "By tool and outcome.",
                [(rate("tool_calls_total", "tool, outcome", per=60), "{{tool}} {{outcome}}")],
            ),
            Panel(
                "Permissions and questions per hour",
                "By how they were settled.",
                [(rate("interrupts_total", "kind, outcome", per=3600), "{{kind}} {{outcome}}")],
            ),
            Panel(
                "How long people take",
                "To answer an agent.",
                both("interrupt_wait_seconds", "kind"),
                "s",
            ),
            Panel(
                "Calls to other agents per minute",
                "And files that messages named.",
                [
                    (rate("outbound_calls_total", "peer, outcome", per=60), "{{peer}} {{outcome}}"),
                    (rate("files_fetched_total", "outcome", per=60), "files, {{outcome}}"),
                ],
            ),
            Panel(
                "… how long they take",
                "By agent.",
                both("outbound_call_duration_seconds", "peer"),
                "s",
            ),
        ]
    ],
    "Requests": [
        [
            Panel(
                "Per second",
                "By operation and line of the protocol.",
                [(rate("requests_total", "operation, line"), "{{operation}} {{line}}")],
            ),
            Panel(
                "Refused, per second",
                "By outcome, and logins.",
                [
                    (rate("requests_total", "outcome", labels='outcome!="ok"'), "{{outcome}}"),
                    (rate("logins_refused_total", "reason"), "login {{reason}}"),
                ],
            ),
            Panel(
                "To the answer",
                "95 % begin within this time.",
                [(quantile(0.95, "request_duration_seconds", "operation"), "{{operation}}")],
                "s",
            ),
        ],
        [
            Panel(
                "Connections, streams, readers",
                "Open now.",
                [
                    (total("connections", "kind"), "connections, {{kind}}"),
                    (total("streams"), "streams"),
                    (total("readers"), "readers"),
                ],
            ),
            Panel("Sent in streams", "Bytes.", [(rate("stream_bytes_total"), "per second")], "Bps"),
            Panel(
                "Streams opened", "Per minute.", [(rate("streams_opened_total", per=60), "streams")]
            ),
        ],
    ],
    "Inside": [
        [
            Panel(
                "Commits of the task log",
                "How long they take, and how long the oldest update had waited.",
                [
                    (quantile(0.95, "log_commit_duration_seconds"), "commit, 95 %"),
                    (quantile(0.95, "log_lag_seconds"), "lag, 95 %"),
                ],
                "s",
            ),
            Panel(
                "Entries in a commit",
                "On average, and updates that wait.",
                [
                    (
                        f"{rate('log_commit_entries_sum')} / {rate('log_commit_entries_count')}",
                        "entries",
                    ),
                    (total("log_pending_updates"), "waiting"),
                ],
            ),
            Panel(
                "Trouble, per minute",
                "All of it is 0 on a good day.",
                [
                    (rate("store_errors_total", "error", per=60), "store {{error}}"),
                    (rate("feed_reconnects_total", per=60), "OpenCode reconnected"),
                    (rate("feed_gaps_total", per=60), "gaps"),
                    (rate("reconciles_total", per=60), "reconciles"),
                    (rate("provider_retries_total", per=60), "provider retries"),
                    (rate("audit_errors_total", per=60), "audit lines lost"),
                ],
            ),
        ],
        [
            Panel(
                "OpenCode's answers",
                "95 % come within this time.",
                [(quantile(0.95, "opencode_request_duration_seconds", "route"), "{{route}}")],
                "s",
            ),
            Panel(
                "Requests to OpenCode per second",
                "By outcome.",
                [(rate("opencode_requests_total", "outcome"), "{{outcome}}")],
            ),
            Panel(
                "Memory",
                "Of each process.",
                [(of("process_resident_memory_bytes"), "{{instance}}")],
                "bytes",
            ),
            Panel(
                "CPU and files",
                "Cores in use, and the share of files that are open of those that may be.",
                [
                    (f"rate({of('process_cpu_seconds_total')}{WINDOW})", "CPU {{instance}}"),
                    (f"{of('process_open_fds')} / {of('process_max_fds')}", "files {{instance}}"),
                ],
                "percentunit",
            ),
        ],
    ],
    "Push notifications": [
        [
            Panel(
                "Requests to receivers per second",
                "By outcome.",
                [(rate("push_attempts_total", "outcome"), "{{outcome}}")],
            ),
            Panel(
                "Until a receiver has an event",
                "Half and 95 % of the events are taken within this time, with all attempts.",
                [
                    (quantile(0.5, "push_delivery_seconds"), "half"),
                    (quantile(0.95, "push_delivery_seconds"), "95 %"),
                ],
                "s",
            ),
            Panel(
                "Push configs",
                "Those that are open, and those whose receiver does not take its events.",
                [(total("push_configs", "kind"), "{{kind}}")],
            ),
            Panel(
                "Dead letters in an hour",
                "Events that a receiver has not taken in time.",
                [(f"sum(increase({of('push_dead_letters_total')}[1h]))", "letters")],
            ),
        ],
    ],
}


def _panels() -> Iterator[Json]:
    number = y = 0
    for title, lines in ROWS.items():
        number += 1
        place = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        y += 1
        for line in lines:
            height, width = (4 if line[0].type == "stat" else 8), WIDTH // len(line)
            for i, panel in enumerate(line):
                number += 1
                yield panel.json(number, {"h": height, "w": width, "x": i * width, "y": y})
            y += height


def _variable(name: str, labels: str = "") -> Json:
    query = f"label_values({PREFIX}info{labels}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> Json:
    return {
        "uid": "opencode-a2a",
        "title": "opencode-a2a",
        "description": "What a service does, what it costs, and what is wrong.",
        "tags": ["opencode-a2a", "a2a"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                _variable("job"),
                _variable("instance", '{job=~"$job"}'),
            ]
        },
        "annotations": {"list": []},
        "panels": list(_panels()),
    }
