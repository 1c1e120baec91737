"""
A cluster
=========

A fit on many machines gives the same bits as on one. Blocks of a table that stays in its files
travel as descriptions (path, place, row numbers), never as rows; whoever works on one reads it.
Here Dask's ``LocalCluster`` plays the cluster; with a real one only its address changes.
"""

# sphinx_gallery_thumbnail_path = "images/selective.png"

# %%
# **Files** that all workers can see: four of them, read as one table that is never in memory as a whole.

import tempfile
from pathlib import Path

import numpy as np

import metacal as mc

data = mc.datasets.load("cifar10-resnet110")
folder = Path(tempfile.mkdtemp())
for part, rows in enumerate(np.array_split(np.arange(len(data.labels)), 4)):
    np.save(folder / f"logits-{part}.npy", data.logits[rows])
    np.save(folder / f"labels-{part}.npy", data.labels[rows])
found = mc.read_predictions(
    str(folder / "logits-*.npy"), labels=str(folder / "labels-*.npy"), stream=True
)

# %%
# **The fit** takes a Dask client, or any executor of ``concurrent.futures``. (``__main__`` is asked
# because workers start as fresh processes, which must not run this file again.)

from distributed import Client, LocalCluster

if __name__ == "__main__":
    options = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster) as client:
        print(f"{len(client.scheduler_info()['workers'])} workers, {found.table.shape[0]:,} rows")
        there = mc.MetaCal(mc.MinAccuracy(0.97)).fit(found.table, found.labels, executor=client)
    print(there.certificate_.statement)

# %%
# **The same gate, bit by bit**, as on one thread of this machine: sums are taken in the order of the blocks, wherever
# they were computed.

if __name__ == "__main__":
    here = mc.MetaCal(mc.MinAccuracy(0.97)).fit(data.logits, data.labels)
    assert there.gate_ == here.gate_
    print(f"threshold {here.threshold_!r} on both")

# %% On the command line: ``metacal fit 'logs/*.parquet' --executor dask://host:8786 --min-accuracy
# 0.97 -o cal.json``.
