"""The program: `opencode-a2a`, or `python -m opencode_a2a`."""

from . import cli


def main() -> None:
    cli.main(before_loading=load_faster)


def server_main() -> None:
    cli.server_main(before_loading=load_faster)


def load_faster() -> None:
    """Leave out what would make the start longer. The shares are of its CPU time to the card.

    Frozen dataclasses are made in a quicker way (`quick_dataclasses`): 15 %. To load the service
    makes very many objects and no garbage, so nothing looks for garbage until that is done: 9 %.
    Models are built when they are first used; some never are. That was 6 % while a start loaded
    FastAPI too, and was not measured since. And structlog and httpx would load rich, which they do
    not need here; that was measured apart, as about 0.09 s.
    """
    import gc
    import sys

    from . import quick_dataclasses

    gc.disable()
    quick_dataclasses.install()
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import fails as if there was none
    from pydantic import BaseModel

    BaseModel.model_config["defer_build"] = True  # what all models start from


if __name__ == "__main__":
    main()
