"""How a command prints its whole result at once."""

import signal


def print_result(text: str) -> None:
    """Print it; end as other programs do if the reader closes the pipe early (`| head`).

    Python ignores SIGPIPE otherwise, and so does whoever calls this afterwards: a process that
    goes on would be killed by the first connection that somebody else closes.
    """
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        print(text, flush=True)
    finally:
        signal.signal(signal.SIGPIPE, before)
