"""What curl does with the options that our pages use, without needing curl: `python -IS curl.py …`.

Requests to http://127.0.0.1:8000, where the pages say the service is, go to the port that the file
named in CURL_PORT_FILE holds, as with curl's `--connect-to`.
"""

import argparse
import http.client
import os
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

DOCUMENTED_PORT = 8000
SECONDS = 60


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser("curl")
    parser.add_argument("url")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    for flag in ("-s", "-N"):  # no progress bar, no buffer: it has neither
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args(words)
    url = urlsplit(given.url)
    port = url.port
    if port == DOCUMENTED_PORT and "CURL_PORT_FILE" in os.environ:
        port = int(Path(os.environ["CURL_PORT_FILE"]).read_text())
    headers = {"Host": url.netloc} | dict(header.split(": ", 1) for header in given.H)
    body = None if given.d is None else given.d.encode()
    if body is not None:
        headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
    target = url.path + (f"?{url.query}" if url.query else "")
    connection = http.client.HTTPConnection(url.hostname or "", port, timeout=SECONDS)
    connection.request("GET" if body is None else "POST", target or "/", body, headers)
    answer = connection.getresponse()
    while piece := answer.read1(65536):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, as it ends curl
    main(sys.argv[1:])
