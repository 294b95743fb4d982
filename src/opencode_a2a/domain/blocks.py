"""What clients see of each block: deltas, snapshots, replacements, leftovers.

OpenCode tells a text as deltas and closes it with a snapshot of the whole. Events may be lost,
repeated, or read again from what is stored. These rules turn them into updates:

* A delta extends its block. A snapshot adds what is missing or, where what clients have is not its
  beginning, replaces the block.
* After a gap the deltas of an open block cannot be trusted and are dropped: its closing snapshot
  brings the rest.
* When the provider retries, the part that it had begun is abandoned: the retried part takes over
  its block, and a block that no part takes over is emptied.
* What is over (a closed text, a finished tool call) stays over, however often it is reported again.

OpenCode reports a running tool call whole again with each line that it prints. Clients get it whole
when it begins, changes or ends, and between these only what it has printed since.

A text that a tool call follows was commentary. The last text of a completed run is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .events import BlockKind, FileSnapshot, TextSnapshot, ToolCall, ToolSnapshot
from .task import Task
from .updates import BlockFile, BlockOutput, BlockPhase, BlockText, BlockTool, Update

CUT_SHORT = "The run ended before this call did."
LONGEST_OUTPUT = 65_536  # characters of a running call; beyond, its block begins again with …
LATEST_OUTPUT = 4_096  # … the latest of them
OVERLAP = 256  # characters by which the latest output is recognised in a later one


@dataclass(slots=True)
class _Block:
    id: str
    kind: BlockKind
    message_id: str
    part_id: str = ""  # whose text it shows: a retried part takes over a block
    chunks: list[str] = field(default_factory=list)
    started: bool = False  # the next chunk is appended to what clients have
    outdated: bool = False  # what clients have under this id is to be replaced
    ended: bool = False
    missed_deltas: bool = False
    call: ToolCall | None = None  # as OpenCode reported it last
    output_length: int = 0  # of the output that clients have
    phased: bool = True  # clients know what a text is

    @property
    def open(self) -> bool:
        return self.call is None and not self.ended

    @property
    def visible(self) -> bool:
        return self.started or self.outdated

    def text(self) -> str:
        """What clients have of this block. Called when a snapshot arrives, never per delta."""
        if len(self.chunks) > 1:
            self.chunks = ["".join(self.chunks)]
        return self.chunks[0] if self.chunks else ""

    def append(self, text: str, *, last: bool = False) -> BlockText:
        append, self.started, self.outdated = self.started, True, False
        self.chunks.append(text)
        return BlockText(
            block_id=self.id,
            message_id=self.message_id,
            part_id=self.part_id,
            kind=self.kind,
            text=text,
            append=append,
            last=last,
        )

    def whole_call(self, call: ToolCall) -> BlockTool:
        """The update that shows the call, with the latest output only while it runs."""
        if not call.over and call.output is not None:
            call = replace(call, output=call.output[-LATEST_OUTPUT:])
        self.output_length = len(call.output or "")
        return BlockTool(self.id, self.message_id, call)

    def emptied(self) -> BlockText:
        """The update that empties the block; it shows no part any more."""
        return BlockText(
            block_id=self.id,
            message_id=self.message_id,
            part_id="",
            kind=self.kind,
            text="",
            append=False,
            last=True,
        )


class Blocks:
    """The blocks of one turn, by the part of OpenCode's message that each shows."""

    def __init__(self) -> None:
        self._blocks: dict[str, _Block] = {}
        self._abandoned: list[_Block] = []  # until a retried part takes them over
        self._abandoned_parts: set[str] = set()
        self._used_ids: set[str] = set()
        # Texts of this run, by part, of which clients do not know yet what they are.
        self._unphased: dict[str, _Block] = {}

    def resume(self, task: Task) -> None:
        """Take up what the log shows. What was open there may have gone on meanwhile."""
        for seen in task.blocks.values():
            block = _Block(
                id=seen.id,
                kind=seen.kind,
                message_id=seen.message_id,
                part_id=seen.part_id,
                call=seen.call,
                output_length=len(seen.call.output or "") if seen.call is not None else 0,
            )
            if seen.call is not None or seen.file is not None:
                block.ended = True
                self._blocks[seen.id] = block
            elif seen.part_id:
                block.chunks, block.started = [seen.text], True
                block.ended, block.missed_deltas = seen.last, not seen.last
                if seen.part_id in self._blocks:  # abandoned too soon, and begun again
                    self._abandoned.append(self._blocks[seen.part_id])
                self._blocks[seen.part_id] = block
                block.phased = seen.kind is not BlockKind.TEXT or seen.phase is not None
        self._used_ids = set(task.blocks)

    def on_gap(self) -> None:
        """Events were lost: a block that is open may lack some of its deltas."""
        for block in self._blocks.values():
            block.missed_deltas |= block.open

    def on_delta(self, part_id: str, text: str) -> list[Update]:
        block = self._blocks.get(part_id)
        if block is None or block.missed_deltas or block.ended or not text:
            return []
        return [block.append(text)]

    def on_text(
        self, event: TextSnapshot, *, after_gap: bool, message_completed: bool
    ) -> list[Update]:
        block = self._blocks.get(event.part_id)
        if block is None:
            late = event.part_id in self._abandoned_parts or message_completed
            if late and not event.ended:
                return []  # its message has ended without it, or the provider's retry has
            block = self._blocks[event.part_id] = self._block_for(event)
            block.phased = block.kind is not BlockKind.TEXT
            block.missed_deltas = after_gap and not event.ended
        if not block.phased:
            self._unphased[event.part_id] = block
        seen = block.text()
        if not event.ended and (block.ended or len(event.text) <= len(seen)):
            return []  # just opened, or older than what the deltas have brought
        if event.text == seen and block.ended:
            return []
        # A block that was closed too soon cannot be continued, only replaced.
        replaces, block.ended = block.ended or not event.text.startswith(seen), event.ended
        if replaces:
            block.chunks, block.started, block.outdated = [], False, True
            seen = ""
            if block.kind is BlockKind.TEXT:
                block.phased, self._unphased[event.part_id] = False, block
        missing = event.text[len(seen) :]
        if not missing and not block.visible:
            return []  # clients have never seen it, and there is nothing to see
        return [block.append(missing, last=event.ended)]

    def _block_for(self, event: TextSnapshot) -> _Block:
        """A block for a part that has none: an abandoned one of its kind, or a new one."""
        for block in self._abandoned:
            if block.message_id == event.message_id and block.kind is event.kind:
                self._abandoned.remove(block)
                return _Block(
                    id=block.id,
                    kind=event.kind,
                    message_id=event.message_id,
                    part_id=event.part_id,
                    outdated=block.visible,
                )
        block_id = event.part_id
        while block_id in self._used_ids:  # the part was abandoned too soon and has lost its block
            block_id += "-again"
        self._used_ids.add(block_id)
        return _Block(
            id=block_id, kind=event.kind, message_id=event.message_id, part_id=event.part_id
        )

    def on_tool(self, event: ToolSnapshot) -> list[Update]:
        block = self._blocks.get(event.part_id)
        if block is None:
            block = _Block(event.part_id, BlockKind.TOOL_CALL, event.message_id)
            self._blocks[event.part_id] = block
            block.call = event.call
            return [*self._commentary(self._texts()), block.whole_call(event.call)]
        known, call = block.call, event.call.begun_as(block.call)
        if known == call or (known is not None and known.over and not call.over):
            return []
        more = _more_output(known, call) if known is not None else None
        if more == "":
            return []  # nothing new, or older than what is known
        block.call = call
        if more is None or block.output_length + len(more) > LONGEST_OUTPUT:
            return [block.whole_call(call)]
        start, block.output_length = block.output_length, block.output_length + len(more)
        return [BlockOutput(block.id, call.call_id, tool=call.tool, output=more, start=start)]

    def on_file(self, event: FileSnapshot) -> list[Update]:
        if event.part_id in self._blocks:
            return []
        block = _Block(event.part_id, BlockKind.FILE, event.message_id, ended=True)
        self._blocks[event.part_id] = block
        return [BlockFile(block.id, block.message_id, event.part)]

    def on_removed(self, part_id: str) -> list[Update]:
        block = self._blocks.pop(part_id, None)
        return [block.emptied()] if block and block.open and block.visible else []

    def on_retry(self) -> None:
        """The provider begins again: abandon what is open, for the retried parts to take over."""
        for part_id, block in list(self._blocks.items()):
            if block.open and not block.missed_deltas:  # reading what is stored tells of the others
                del self._blocks[part_id]
                self._abandoned_parts.add(part_id)
                self._abandoned.append(block)

    def on_message_completed(self, message_id: str) -> list[Update]:
        """A completed message keeps only the texts that it has closed: empty the others."""
        for part_id, block in list(self._blocks.items()):
            if block.message_id == message_id and block.open:
                del self._blocks[part_id]
                self._abandoned.append(block)
        leftovers = [block for block in self._abandoned if block.message_id == message_id]
        self._abandoned = [block for block in self._abandoned if block.message_id != message_id]
        return [block.emptied() for block in leftovers if block.visible]

    def on_calls_completed(self, message_id: str) -> list[Update]:
        """A message has ended in tool calls, so another follows, and it is not the answer.

        Its calls have said so already, unless they were heard of before its texts.
        """
        return self._commentary(b for b in self._texts() if b.message_id == message_id)

    def answer(self) -> list[Update]:
        """The run is completed: its last text is the answer, if no tool call has followed it."""
        texts = self._texts()
        if not texts:
            return []
        answer = texts.pop()
        answer.phased = True
        return [*self._commentary(texts), BlockPhase(answer.id, "answer")]

    def _texts(self) -> list[_Block]:
        """The texts that clients see and of which they do not know what they are."""
        self._unphased = {
            part_id: block
            for part_id, block in self._unphased.items()
            if not block.phased and self._blocks.get(part_id) is block
        }
        return [block for block in self._unphased.values() if block.text()]

    def _commentary(self, texts: Iterable[_Block]) -> list[Update]:
        updates: list[Update] = []
        for block in texts:
            block.phased = True
            updates.append(BlockPhase(block.id, "commentary"))
        return updates

    def end(self) -> list[Update]:
        """The run is over: close what is open, as far as it got."""
        updates: list[Update] = []
        for block in (*self._blocks.values(), *self._abandoned):
            if block.open and block.visible:
                updates.append(block.append("", last=True))
            elif block.call is not None and not block.call.over:
                call = replace(block.call, status="error", error=CUT_SHORT)
                updates.append(BlockTool(block.id, block.message_id, call))
        return updates


def _more_output(known: ToolCall, call: ToolCall) -> str | None:
    """What a call has printed since its last report. None if that is not all that has changed."""
    before, now = known.output or "", call.output or ""
    if call.over or replace(call, output=known.output) != known:
        return None
    if now.startswith(before):
        return now[len(before) :]
    if before.startswith(now):
        return ""
    if len(before) < OVERLAP:
        return None
    # OpenCode reports the latest output of a call only. Find the end of what was known in it.
    end = before[-OVERLAP:]
    at = now.rfind(end)
    known_part = now[: at + len(end)]
    if at < 0 or not (before.endswith(known_part) or known_part.endswith(before)):
        return None
    return now[len(known_part) :]
