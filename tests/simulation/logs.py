"""A folder of logs that somebody writes, rotates and cuts off while somebody else reads them; all
from a seed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from metacal.io.lines import LogFileSystem
from simulation.world import World

#: The log, and the longest line that its reader takes.
LOG, LONGEST = "logs/a.log", 400


@dataclass
class File:
    """What an inode stands for; `lines` are those that were written into it since it was last
    empty.
    """

    inode: int
    content: bytes = b""
    modified: int = 0
    lines: list[str] = field(default_factory=list)


class Opened:
    """An open file, which stays what it is whatever becomes of its name."""

    def __init__(self, file: File, world: World) -> None:
        self.file, self.world, self.identity = file, world, (1, file.inode)

    def size(self) -> int:
        return len(self.file.content)

    def modification_time_ns(self) -> int:
        return self.file.modified

    def read(self, at: int, n: int) -> bytes:
        self.world._fate()
        return self.file.content[at : at + min(n, 4096 + int(self.world.rng.integers(1, 400)))]

    def close(self) -> None:
        pass


class Folder(LogFileSystem):
    """Names and inodes, and a writer that holds its file open as real ones do.

    Every line has a name of its own; those that cannot be read are called bad. `destroyed` are
    lines of which nothing is left, by file; somebody may have read them before.
    """

    def __init__(self, world: World, kind: str) -> None:
        self.world, self.kind, self.rng = world, kind, world.rng
        self.names: dict[str, File] = {}
        self.inodes = 0
        self.written: list[tuple[str, bytes]] = []
        self.destroyed: list[list[str]] = []
        self.waiting: list[int] = []
        self.rows = 0
        self.rest, self.current, self.ticks = b"", "", 0
        self.had_header, self.halves = set[int](), 0
        self.file = self.create()

    def open(self, path: str) -> Opened | None:
        self.world._fate()
        return Opened(self.names[path], self.world) if path in self.names else None

    def plain(self) -> Opened:
        """The file that is written to, open for whoever checks the laws."""
        return Opened(File(self.file.inode, self.file.content), World(0, killed=0.0))

    def list_directory_of(self, path: str) -> Iterator[str]:
        yield from sorted(name.removeprefix("logs/") for name in self.names)

    # ── who writes ────────────────────────────────────────────────────────────────────────────────

    def create(self) -> File:
        self.inodes += 1
        self.names[LOG] = File(self.inodes)
        return self.names[LOG]

    def write(self) -> None:
        """A piece of a line, the rest of one, or several."""
        if not self.rest and self.names.get(LOG) is not self.file and self.rng.random() < 0.7:
            self.file = self.names.get(LOG) or self.create()  # told to open it anew
        if not self.rest:
            if (
                self.kind == "csv"
                and not self.file.content
                and self.file.inode not in self.had_header
            ):
                self.file.content += b"id,logits_0,logits_1,logits_2,label\n"
                self.had_header.add(self.file.inode)
            self.current, content = self.line()
            self.rest = content + b"\n"
        n = (
            len(self.rest)
            if self.rng.random() < 0.7
            else int(self.rng.integers(1, len(self.rest) + 1))
        )
        self.file.content += self.rest[:n]
        self.rest = self.rest[n:]
        self.touch(self.file)
        if not self.rest and self.current:
            self.file.lines.append(self.current)

    def touch(self, file: File) -> None:
        self.ticks += int(self.rng.random() < 0.8)  # a clock that is not fine enough
        file.modified = self.ticks

    def line(self) -> tuple[str, bytes]:
        name = f"{self.kind}{len(self.written)}"
        kind = self.rng.random()
        if kind < 0.15:
            content = self.bad()
            name = f"bad{len(self.written)}"
        elif kind < 0.35 and self.waiting:
            of = self.waiting.pop(int(self.rng.integers(len(self.waiting))))
            label = int(self.rng.integers(3))
            row = {"id": f"row{of}", "label": label}
            content = (
                f"row{of},,,,{label}".encode() if self.kind == "csv" else json.dumps(row).encode()
            )
        else:
            numbers = [round(float(x), 3) for x in self.rng.normal(size=3)]
            label = int(self.rng.integers(3)) if self.rng.random() < 0.3 else None
            if label is None:
                self.waiting.append(self.rows)
            row = {
                "id": f"row{self.rows}",
                "logits": numbers,
                **({} if label is None else {"label": label}),
            }
            cells = [f"row{self.rows}", *map(str, numbers), "" if label is None else str(label)]
            content = ",".join(cells).encode() if self.kind == "csv" else json.dumps(row).encode()
            self.rows += 1
        self.written.append((name, content))
        return name, content

    def bad(self) -> bytes:
        n = len(self.written)
        some = [
            f'{{"id": "x{n}", "logits": [1, 2]}}'.encode(),
            f'{{"id": "x{n}", "logits": [1, NaN, 2]}}'.encode(),
            f'{{"id": "x{n}", "logits": [1, 2, 3], "label": "cat"}}'.encode(),
            f'{{"id": "x{n}"}}'.encode(),
            f"broken{n} {{".encode(),
            f"x{n},1,2".encode(),
            f"x{n},1,nan,2,".encode(),
            f"x{n},1,\xff,2,".encode("latin-1"),
            f"x{n},{'9' * (LONGEST + int(self.rng.integers(900)))}".encode(),
        ]
        return some[int(self.rng.integers(len(some)))]

    def finish(self) -> None:
        """The end of the line that has begun."""
        if self.rest:
            self.file.content += self.rest
            self.file.lines.append(self.current)
            self.rest = b""
            self.touch(self.file)

    # ── who rotates ───────────────────────────────────────────────────────────────────────────────

    def shift(self) -> None:
        """log.2 -> log.3, log.1 -> log.2; what was log.3 is gone."""
        for k in (3, 2, 1):
            file = self.names.pop(f"{LOG}.{k}", None)
            if file is not None and k < 3:
                self.names[f"{LOG}.{k + 1}"] = file
            elif file is not None:
                self.destroyed.append(list(file.lines))

    def move(self) -> None:
        """mv log log.1; a new one is there at once, or when the writer makes it."""
        if LOG in self.names and self.names[LOG].content and self.names[LOG] is self.file:
            self.shift()
            self.names[f"{LOG}.1"] = self.names.pop(LOG)
            if self.rng.random() < 0.5:
                self.create()

    def cut_off(self, *, copied: bool) -> bool:
        """cp log log.1; : > log, or without a copy; False where there is nothing to cut off."""
        if self.names.get(LOG) is not self.file or not self.file.content:
            return False
        if self.rest and self.rest != self.written[-1][1] + b"\n":
            self.destroyed.append(
                [self.current]
            )  # its halves stand in two files, and may look like whole lines
            self.halves += 1
            self.current = ""
        if copied:
            self.shift()
            self.inodes += 1
            self.names[f"{LOG}.1"] = File(self.inodes, self.file.content, 0, self.file.lines)
            self.ticks += 1  # to copy takes longer than a tick
            self.names[f"{LOG}.1"].modified = self.ticks
        else:
            self.destroyed.append(list(self.file.lines))
        self.file.content, self.file.lines = b"", []
        self.touch(self.file)
        return True
