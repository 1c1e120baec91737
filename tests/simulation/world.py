"""A world in which everything that can go wrong with a disk does, at moments that a seed chooses.

A `World` stands in for `metacal.io.disk.DISK`. Each thing that a tool asks of it may instead end
the process (`Killed`: what was being written is torn, zeroed, there or not there), fail for want of
room, fail to sync, or let another process run first. After a death the locks of the dead are free,
and the files are what a real disk may show. A *history* is a number of such lives; the laws are
checked at its end. Everything follows from the seed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator

import numpy as np

from metacal.errors import BusyError
from metacal.io.atomic_rename import UnsupportedError
from metacal.io.disk import Disk, Stamp

#: The clock that stamps files ticks like that of a kernel; what is written within a tick looks as
#: old.
TICK_NS = 4_000_000


class Killed(BaseException):
    """The process is gone, as by kill -9 or a loss of power: no `except Exception` sees it."""


class Files(dict[str, bytes]):
    """The files of a world, and when each was written."""

    def __init__(self) -> None:
        super().__init__()
        self.clock_ns = 1_700_000_000_000_000_000
        self.written_ns: dict[str, int] = {}

    def __setitem__(self, path: str, content: bytes) -> None:
        super().__setitem__(path, content)
        self.written_ns[path] = self.clock_ns // TICK_NS * TICK_NS


class World(Disk):
    """A disk and the fate of whoever uses it.

    Parameters
    ----------
    seed : int
    killed, full, unsynced : float
        With which probability one request ends the process, finds no room, or cannot be synced.
    meanwhile : callable, optional
        What another process does, called now and then (with probability `busy`) in the middle of a
        request.
    swaps : bool
        Whether the file system can exchange two files.
    """

    def __init__(
        self,
        seed: int,
        *,
        killed: float = 0.1,
        full: float = 0.0,
        unsynced: float = 0.0,
        busy: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
        swaps: bool = True,
    ) -> None:
        self.rng = np.random.default_rng([seed, 0x5157])
        self.chance = {"killed": killed, "full": full, "unsynced": unsynced, "busy": busy}
        self.meanwhile = meanwhile
        self.files = Files()
        self.steps = np.random.default_rng([seed, 0xC10C])
        self.held: dict[str, str] = {}
        self.process = 0
        self.deaths = 0
        self.swaps = swaps

    def happens(self, what: str) -> bool:
        return bool(self.rng.random() < self.chance[what])

    def peace(self) -> None:
        """From now on nothing goes wrong: the last life, in which a tool must come to its end."""
        self.chance = dict.fromkeys(self.chance, 0.0)
        self.meanwhile = None

    def life(self, tool: Callable[[], object]) -> object:
        """Run a tool as a process of its own; None where it was killed."""
        self.process += 1
        own = str(self.process)
        try:
            return tool()
        except Killed:
            self.deaths += 1
            return None
        finally:
            self.held = {path: who for path, who in self.held.items() if who != own}

    # ── what a tool asks for ──────────────────────────────────────────────────────────────────────

    def read(self, path: str) -> bytes | None:
        self._fate()
        return self.files.get(path)

    def read_stamp(self, path: str) -> Stamp | None:
        self._fate()
        if path not in self.files:
            return None
        # The worst there is: a time that ticks, and nothing else that would tell one file from
        # another.
        return Stamp(
            len(self.files[path]), self.files.written_ns[path], self.files.written_ns[path], 0
        )

    def exists(self, path: str) -> bool:
        self._fate()
        return path in self.files

    def checksum(self, path: str) -> str:
        self._fate()
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return hashlib.sha256(self.files[path]).hexdigest()

    def real_path(self, path: str) -> str:
        return path  # this world has no links

    def pause(self, seconds: float) -> None:
        self._fate()

    def list_names(self, folder: str) -> list[str]:
        self._fate()
        if folder == ".":
            return sorted(path for path in self.files if "/" not in path)
        return sorted(
            path[len(folder) + 1 :] for path in self.files if path.startswith(f"{folder}/")
        )

    def now_ns(self) -> int:
        return self.files.clock_ns

    def replace(self, temporary_path: str, target: str) -> None:
        content, written_ns = self.files[temporary_path], self.files.written_ns[temporary_path]
        if self.happens("unsynced"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), target)
        killed = self.happens("killed")
        if not killed or self.rng.random() < 0.5:
            del self.files[temporary_path]
            self.files[target] = content
            self.files.written_ns[target] = written_ns
        if killed:
            raise Killed
        self._fate()

    def swap(self, temporary_path: str, target: str) -> None:
        self._fate()
        if not self.swaps:
            raise UnsupportedError(errno.ENOSYS, os.strerror(errno.ENOSYS), temporary_path)
        self._check_is_there(temporary_path)
        self._check_is_there(target)
        killed = self.happens("killed")
        if not killed or self.rng.random() < 0.5:
            first, second = self.files[temporary_path], self.files[target]
            self.files[temporary_path], self.files[target] = second, first
        if killed:
            raise Killed
        if self.happens("unsynced"):  # the exchange took place, but the folder could not be synced
            raise OSError(errno.EIO, os.strerror(errno.EIO), target)
        self._fate()

    def rename_without_replacing(self, source: str, target: str) -> None:
        self._fate()
        self._check_is_there(source)
        if target in self.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        killed = self.happens("killed")
        if not killed or self.rng.random() < 0.5:
            self.files[target] = self.files.pop(source)
        if killed:
            raise Killed
        self._fate()

    def _check_is_there(self, path: str) -> None:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    @contextlib.contextmanager
    def lock_content(self, path: str) -> Iterator[None]:
        yield  # this world has no hard links

    def append(self, path: str, content: bytes) -> None:
        before = self.files.get(path, b"")
        if self.happens("full"):
            self.files[path] = before + content[: self._upto(len(content))]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.happens("unsynced"):
            self.files[path] = before + content
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if self.happens("killed"):
            self.files[path] = before + self._torn(content)
            raise Killed
        self._fate()
        self.files[path] = before + content

    def truncate(self, path: str, size: int) -> None:
        if self.happens("killed"):
            self._either(path, self.files[path][:size])
        if self.happens("unsynced"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self.files[path] = self.files[path][:size]

    def write(self, path: str, content: bytes) -> None:
        if self.happens("full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.happens("killed"):
            self._either(path, content)
        self._fate()
        self.files[path] = content

    def remove(self, path: str) -> None:
        if self.happens("killed"):
            self._either(path, None)
        self.files.pop(path, None)

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        self._fate()
        if path in self.held:
            raise BusyError(f"{path} is in use by process {self.held[path]}")
        self.held[path] = str(self.process)
        yield  # not in a finally: a process that is killed gives nothing back, `life` does
        self.held.pop(path, None)

    # ── fate ──────────────────────────────────────────────────────────────────────────────────────

    def _fate(self) -> None:
        """Before something is done: time passes, another process may run, or this one end."""
        self.files.clock_ns += int(
            self.steps.choice([0, 1_000_000, 30_000_000, 3_000_000_000], p=[0.4, 0.4, 0.1, 0.1])
        )
        if self.meanwhile is not None and self.happens("busy"):
            other, self.meanwhile = self.meanwhile, None
            own = self.process
            try:
                self.life(other)
            finally:
                self.process, self.meanwhile = own, other
        if self.happens("killed"):
            raise Killed

    def _upto(self, n: int) -> int:
        return int(self.rng.integers(0, n + 1))

    def _torn(self, content: bytes) -> bytes:
        """What of an append may be found after a crash: nothing, all, a beginning, zeros where data
        never came.
        """
        kind = self.rng.integers(0, 4)
        if kind < 2:
            return content if kind else b""
        cut = self._upto(len(content))
        return content[:cut] + (bytes(self._upto(len(content) - cut)) if kind == 3 else b"")

    def _either(self, path: str, content: bytes | None) -> None:
        """The process ends; the file is the old one or the new one."""
        if self.rng.random() < 0.5:
            if content is None:
                self.files.pop(path, None)
            else:
                self.files[path] = content
        raise Killed
