"""A file that somebody saves while it is being replaced is neither overwritten nor lost."""

from __future__ import annotations

import os
import stat

import pytest

from metacal.io.atomic_rename import UnsupportedError
from metacal.io.disk import Disk
from metacal.io.exchange import find_leftovers, rename_to_backup, replace_if_unchanged

READ, NEW, SAVED, SAVED_AGAIN = b"read before", b"new", b"saved by a person", b"saved once more"


class Interrupted(Disk):
    """A disk on which a person acts right before some of the exchanges."""

    def __init__(self, *acts, swaps=True):
        self.acts = list(acts)
        self.swaps = swaps

    def swap(self, temporary_path, target):
        if not self.swaps:
            raise UnsupportedError(38, "not implemented", temporary_path)
        self._act()
        super().swap(temporary_path, target)

    def rename_without_replacing(self, source, target):
        if not self.swaps:
            self._act()
        super().rename_without_replacing(source, target)

    def _act(self):
        if self.acts:
            self.acts.pop(0)()


@pytest.fixture
def sheet(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_bytes(READ)
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("swaps", [True, False])
def test_a_file_that_nobody_touches_is_replaced(sheet, swaps):
    sheet.chmod(0o640)
    assert replace_if_unchanged(Interrupted(swaps=swaps), str(sheet), NEW, READ).is_done
    assert contents(sheet.parent) == {"labels.csv": NEW}
    if swaps:
        assert stat.S_IMODE(sheet.stat().st_mode) == 0o640


@pytest.mark.parametrize("swaps", [True, False])
def test_a_file_saved_in_between_stays(sheet, swaps):
    disk = Interrupted(lambda: sheet.write_bytes(SAVED), swaps=swaps)
    replacement = replace_if_unchanged(disk, str(sheet), NEW, READ)
    assert (replacement.is_done, replacement.backup_path) == (False, None)
    assert contents(sheet.parent) == {"labels.csv": SAVED}


@pytest.mark.parametrize("swaps", [True, False])
def test_whoever_is_writing_into_the_file_goes_on_in_the_same_file(sheet, swaps):
    """A program that saves in place empties the file first, and writes some time later."""
    opened = []
    disk = Interrupted(lambda: opened.append(os.open(sheet, os.O_WRONLY | os.O_TRUNC)), swaps=swaps)
    assert not replace_if_unchanged(disk, str(sheet), NEW, READ).is_done
    os.write(opened[0], SAVED)
    os.close(opened[0])
    assert contents(sheet.parent) == {"labels.csv": SAVED}


@pytest.mark.parametrize("swaps", [True, False])
def test_a_file_saved_twice_in_between_is_kept_twice(sheet, tmp_path, swaps):
    def save_anew(content):
        other = tmp_path / "other"
        other.write_bytes(content)
        os.replace(other, sheet)

    acts = [lambda: save_anew(SAVED), lambda: save_anew(SAVED_AGAIN)]
    replacement = replace_if_unchanged(Interrupted(*acts, swaps=swaps), str(sheet), NEW, READ)
    assert not replacement.is_done
    assert replacement.backup_path == str(sheet.parent / "labels.saved-1.csv")
    found = contents(sheet.parent)
    assert set(found) == {"labels.csv", "labels.saved-1.csv"}
    assert set(found.values()) == {SAVED, SAVED_AGAIN}


@pytest.mark.parametrize("swaps", [True, False])
def test_a_file_removed_in_between_is_not_written(sheet, swaps):
    assert not replace_if_unchanged(
        Interrupted(sheet.unlink, swaps=swaps), str(sheet), NEW, READ
    ).is_done
    assert contents(sheet.parent) == {}


def test_a_new_file_does_not_replace_one_that_appears(tmp_path):
    path = tmp_path / "labels.csv"
    disk = Interrupted(lambda: path.write_bytes(SAVED), swaps=False)
    assert not replace_if_unchanged(disk, str(path), NEW, None).is_done
    assert contents(tmp_path) == {"labels.csv": SAVED}


def test_a_link_stays_a_link(sheet, tmp_path):
    link = tmp_path / "link.csv"
    link.symlink_to(sheet)
    assert replace_if_unchanged(Disk(), str(link), NEW, READ).is_done
    assert link.is_symlink()
    assert sheet.read_bytes() == NEW


def test_a_failed_sync_leaves_what_was_taken_out_where_it_is_found(sheet):
    class Failing(Disk):
        def swap(self, temporary_path, target):
            sheet.write_bytes(SAVED)
            super().swap(temporary_path, target)
            raise OSError(5, "input/output error", target)

    disk = Failing()
    with pytest.raises(OSError, match="input/output"):
        replace_if_unchanged(disk, str(sheet), NEW, READ)
    (leftover,) = find_leftovers(disk, str(sheet))
    assert disk.read(leftover) == SAVED
    assert rename_to_backup(disk, leftover, str(sheet)).endswith("labels.saved-1.csv")


def test_without_flags_of_rename_a_file_is_not_replaced_either(sheet, tmp_path, monkeypatch):
    def unknown(source, target, *, exchange):
        raise UnsupportedError(22, "invalid argument", source)

    monkeypatch.setattr("metacal.io.disk.rename_with_flag", unknown)
    other = tmp_path / "other.csv"
    other.write_bytes(NEW)
    with pytest.raises(FileExistsError):
        Disk().rename_without_replacing(str(other), str(sheet))
    assert replace_if_unchanged(Disk(), str(sheet), NEW, READ).is_done
    assert contents(tmp_path) == {"labels.csv": NEW, "other.csv": NEW}
