"""Flip one bit in a file: a checksum must find it, or it must have no effect.

The table in docs/files.md lists the formats with checksums; its rows are tested here.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

import metacal as mc

N_ROWS, N_CLASSES = 120, 5
LOGITS = np.random.default_rng(0).normal(size=(N_ROWS, N_CLASSES)).astype(np.float32)
LABELS = LOGITS.argmax(axis=1)
IDS = np.array([f"item {row}" for row in range(N_ROWS)])
CLASSES = ["cat", "dog", "fox", "hen", "owl"]
N_FLIPS = 40

pytestmark = pytest.mark.filterwarnings("ignore::metacal.MetacalWarning")


def write_table(path):
    mc.io.write_table(path, {"id": IDS, "logits": LOGITS, "label": LABELS}, class_names=CLASSES)


def write_in_row_groups(path):
    with mc.io.writing.open_table(path, N_ROWS, class_names=CLASSES) as write:
        for start in range(0, N_ROWS, 50):
            rows = slice(start, start + 50)
            write({"id": IDS[rows], "logits": LOGITS[rows], "label": LABELS[rows]})


def write_plain_parquet(path):
    import pyarrow
    import pyarrow.parquet

    columns = {"id": IDS.tolist(), "logits": LOGITS.tolist(), "label": LABELS}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, write_page_checksum=False)


def write_gzipped(path):
    text_file = path.with_suffix("")
    write_table(text_file)
    path.write_bytes(gzip.compress(text_file.read_bytes(), mtime=0))


def write_torch(path):
    torch = pytest.importorskip("torch")
    torch.save(
        {"logits": torch.tensor(LOGITS), "label": torch.tensor(LABELS), "id": torch.arange(N_ROWS)},
        path,
    )


def write_npy(path):
    row_type = [("logits", np.float32, N_CLASSES), ("label", np.int64), ("id", np.int64)]
    rows = np.empty(N_ROWS, dtype=row_type)
    rows["logits"], rows["label"], rows["id"] = LOGITS, LABELS, np.arange(N_ROWS)
    np.save(path, rows)


def write_safetensors(path):
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"logits": LOGITS, "label": LABELS, "id": np.arange(N_ROWS)}, path)


def read_numbers(path, **options):
    """Return all that a file holds, in comparable form; class names apart."""
    found = mc.read_predictions(path, label_key="label", id_key="id", **options)
    return (
        np.asarray(found.table).tobytes(),
        found.labels.tolist(),
        found.ids.tolist(),
    ), found.class_names


def flipped_copies(content, bits):
    for bit in bits:
        copy = bytearray(content)
        copy[bit // 8] ^= 1 << bit % 8
        yield bytes(copy)


def unnoticed_changes(path, bits, **options):
    """Return the number of flips, one at a time, after which the file is read with other
    content.
    """
    numbers, names = read_numbers(path, **options)
    content = path.read_bytes()
    n_changed = 0
    for damaged in flipped_copies(content, bits):
        path.write_bytes(damaged)
        try:
            found_numbers, found_names = read_numbers(path, **options)
        except mc.InputError as error:
            n_changed += path.name not in str(error)
            continue
        # Damage to the metadata can lose the class names as a whole. It must not alter them.
        if found_numbers != numbers or found_names not in (names, None):
            n_changed += 1
    path.write_bytes(content)
    return n_changed


def seeded_bits(path, n_flips=N_FLIPS):
    return np.random.default_rng(1).integers(0, 8 * path.stat().st_size, n_flips).tolist()


#: How each row of the table in docs/files.md is tested: writers, by the name of the file.
CHECKED = {
    "`.parquet` written by metacal": {"a.parquet": write_table},
    "`.npz`": {"a.npz": write_table},
    "`.csv.gz`, `.jsonl.gz`": {"a.csv.gz": write_gzipped, "a.jsonl.gz": write_gzipped},
    "`.pt`, `.pth`": {"a.pt": write_torch},
}
UNCHECKED = {
    "`.parquet` written by others": {"a.parquet": write_plain_parquet},
    "`.arrow`, `.feather`": {"a.arrow": write_table, "a.feather": write_table},
    "`.csv`, `.tsv`": {"a.csv": write_table, "a.tsv": write_table},
    "`.jsonl`, `.ndjson`": {"a.jsonl": write_table, "a.ndjson": write_table},
    "`.npy`": {"a.npy": write_npy},
    "`.safetensors`": {"a.safetensors": write_safetensors},
}


def cases(table):
    return [
        pytest.param(name, write, id=name)
        for files in table.values()
        for name, write in files.items()
    ]


@pytest.mark.parametrize(("name", "write"), cases(CHECKED))
def test_no_flip_changes_a_file_with_checksums(name, write, tmp_path):
    write(tmp_path / name)
    assert unnoticed_changes(tmp_path / name, seeded_bits(tmp_path / name)) == 0


@pytest.mark.parametrize(("name", "write"), cases(UNCHECKED))
def test_a_flip_can_change_a_file_without_checksums(name, write, tmp_path):
    write(tmp_path / name)
    assert unnoticed_changes(tmp_path / name, seeded_bits(tmp_path / name)) > 0


def test_no_flip_changes_parquet_that_is_streamed(tmp_path):
    path = tmp_path / "a.parquet"
    write_in_row_groups(path)
    assert unnoticed_changes(path, seeded_bits(path), stream=True) == 0


def test_no_flip_changes_the_footer_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    write_table(path)
    content = path.read_bytes()
    footer = 8 * content.index(b"metacal.classes")
    bits = range(footer, 8 * len(content), 17)
    assert unnoticed_changes(path, bits) == 0


def test_checksums_of_torch_that_were_turned_off_are_not_verified(tmp_path):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always writes checksums")
    torch.serialization.set_crc32_options(False)
    try:
        write_torch(tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    numbers, _ = read_numbers(tmp_path / "a.pt")
    assert numbers[0] == LOGITS.tobytes()


def test_no_flip_changes_a_gate_file(tmp_path):
    path = tmp_path / "cal.json"
    mc.save(
        mc.MetaCal(mc.MaxMiscoverage(0.2), calibrator=mc.VectorScaling()).fit(LOGITS, LABELS), path
    )
    content = path.read_bytes()
    decision = mc.load(path).decide(LOGITS)
    for damaged in flipped_copies(content, seeded_bits(path)):
        path.write_bytes(damaged)
        try:
            found = mc.load(path).decide(LOGITS)
        except mc.ArtifactError:
            continue
        assert found.probabilities.tobytes() == decision.probabilities.tobytes()
        assert found.accept.tobytes() == decision.accept.tobytes()


def test_every_row_of_the_documented_table_is_tested():
    text = (Path(__file__).parents[2] / "docs" / "files.md").read_text(encoding="utf-8")
    table = text.partition("| format | checksum |")[2].partition("\n\n")[0]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()[2:]]
    noticed = {cells[0]: cells[-1] for cells in rows}
    gates = noticed.pop("[gate files](artifact.md)")  # the test above flips these
    others = noticed.pop("`.parquet` written by others")
    assert (gates, others) == ("yes", "with checksums")
    assert {name for name, answer in noticed.items() if answer == "yes"} == CHECKED.keys()
    unchecked = UNCHECKED.keys() - {"`.parquet` written by others"}
    assert {name for name, answer in noticed.items() if answer == "no"} == unchecked
