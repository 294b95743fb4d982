"""The program: `opencode-a2a`, or `python -m opencode_a2a`.

To load it makes very many objects and no garbage, so nothing looks for garbage until that is done:
the search would be a tenth of the start.
"""

import gc

gc.disable()

from .cli import main, server_main  # noqa: E402

__all__ = ["main", "server_main"]

if __name__ == "__main__":
    main()
