"""What the service costs, measured as ratios in one run: `make bench`, `make bench-smoke`.

Every figure is taken beside what it is compared with, on the same machine in the same minutes.
Three yardsticks: OpenCode called directly, a bare SSE server that sends bytes it has ready
(`floor.py`), and the A2A SDK's own server on its SQLite store (`sdk.py`). Two upstreams: the real
OpenCode on the scripted model, and the fast fake of the tests.

    clock.py      CPU time and memory of other processes, from /proc
    client.py     a client that costs as little as a client can
    streaming.py  latency.py  stored.py  process.py     the measures
    figures.py    what a measure reports; plot.py, report.py: how it is shown
"""
