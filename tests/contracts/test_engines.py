"""Apply anywhere: the recipes of docs/engines.md, run as they stand there, give what `metacal
apply` writes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import metacal as mc

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engines.md"
BLOCKS = re.findall(
    r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
ENGINES = ("distributed", "dask.dataframe", "ray", "pyspark", "polars", "duckdb")
RECIPES = dict(zip(ENGINES, BLOCKS, strict=True))
DATA = mc.datasets.load("cifar10-resnet110")


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A gate, four files of rows, and what `metacal apply` says of them."""
    folder = tmp_path_factory.mktemp("engines")
    mc.save(
        mc.MetaCal(mc.MinAccuracy(0.97)).fit(DATA.logits[:5000], DATA.labels[:5000]),
        folder / "cal.json",
    )
    (folder / "logs").mkdir()
    for part in range(4):
        rows = slice(5000 + 500 * part, 5500 + 500 * part)
        lists = pa.FixedSizeListArray.from_arrays(DATA.logits[rows].ravel(), 10)
        ids = pa.array(range(rows.start, rows.stop))
        pq.write_table(
            pa.table({"id": ids, "logits": lists}), folder / "logs" / f"part-{part}.parquet"
        )
    command = [
        sys.executable,
        "-m",
        "metacal",
        "apply",
        "cal.json",
        "logs",
        "-o",
        "expected.parquet",
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


#: Half a minute each, and 800 MB; the recipes give the same BatchGate to all of them.
LARGE = ("ray", "pyspark")


@pytest.mark.parametrize(
    "engine", [pytest.param(e, marks=[pytest.mark.long] * (e in LARGE)) for e in ENGINES]
)
def test_the_recipe_gives_what_apply_writes(engine, before, tmp_path):
    if importlib.util.find_spec(engine.partition(".")[0]) is None:
        pytest.skip(f"{engine} not found: pip install -e '.[test-all,engines]'")
    if engine == "pyspark" and shutil.which("java") is None:
        pytest.skip("java not found: apt-get install default-jre-headless")
    assert f"import {engine}" in RECIPES[engine] or f"from {engine}" in RECIPES[engine]
    shutil.copytree(before / "logs", tmp_path / "logs")
    shutil.copy(before / "cal.json", tmp_path)
    # Not as a file: processes that a recipe starts would run it once more.
    done = subprocess.run(
        [sys.executable, "-c", RECIPES[engine]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, **QUIET},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = pq.read_table(before / "expected.parquet")
    written = next(
        path
        for name in ("out", "out.parquet", "accepted.parquet")
        if (path := tmp_path / name).exists()
    )
    if written.name == "accepted.parquet":
        expected = expected.filter(expected["accept"])
    found = pq.read_table(written).sort_by("id")
    assert found.schema.names == expected.schema.names
    for name in expected.schema.names:
        assert found[name].to_pylist() == expected[name].to_pylist(), name


#: No reports home, this Python; Java compiles quickly and not well, which for a minute's work is a
#: third less of it.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
