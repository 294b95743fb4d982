"""The program: `opencode-a2a`, or `python -m opencode_a2a`.

To load it makes very many objects and no garbage, so nothing looks for garbage until that is done:
the search would be a tenth of the start. Another tenth would be to build models at once which are
never used, above all those in which FastAPI describes OpenAPI: each is built when it is first used.
"""

import gc

gc.disable()

from pydantic import BaseModel  # noqa: E402

BaseModel.model_config["defer_build"] = True  # what all models start from

from .cli import main, server_main  # noqa: E402

__all__ = ["main", "server_main"]

if __name__ == "__main__":
    main()
