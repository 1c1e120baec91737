"""Tables as a notebook shows them: readable by people and by screen readers, light and dark, on a
phone too.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import metacal as mc

pytest.importorskip("selenium")

#: What surrounds an output: the notebook's own colours, and a box that scrolls where a table is
#: wider.
PAGE = """<!doctype html><html lang="en" data-ready="true"><head><meta charset="utf-8"><title>Notebook</title>
<meta name="viewport" content="width=device-width"><style>:root {{ color-scheme: light dark; font-family: sans-serif }}
section {{ overflow-x: auto }}</style></head><body><main><h1>Notebook</h1>{}</main></body></html>"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(
        2000, random_state=0
    )
    new_x, new_y = new_x[:2000], new_y[:2000]
    gate = mc.MetaCal(mc.MinAccuracy(0.95)).fit(fit_x, fit_y)
    decided = gate.decide(new_x)
    (monitor,) = mc.PromiseMonitor.of(gate.certificate_)
    right = new_x.argmax(axis=1) == new_y
    evaluation = mc.metrics.evaluate(
        decided.probabilities, new_y, accept=decided.accept, correct=right, n_resamples=9
    )
    outputs = [
        gate,
        gate.gate_,
        evaluation,
        evaluation.all_rows["ece"],
        mc.compare(fit_x, fit_y, ["temperature", "histogram"], n_splits=2, n_repeats=1),
        mc.verify(gate, new_x, new_y),
        monitor.update(decided.accept, right),
        mc.Watch.of(gate).update(new_x, new_y),
    ]
    path = tmp_path_factory.mktemp("notebook") / "notebook.html"
    boxes = "".join(
        f'<section tabindex="0" aria-label="Out {k}">{v._repr_html_()}</section>'
        for k, v in enumerate(outputs)
    )
    path.write_text(PAGE.format(boxes), encoding="utf-8")
    return SimpleNamespace(address=path.as_uri())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(notebook, see, axe, scheme):
    driver = see(notebook, scheme=scheme)
    assert not driver.get_log("browser")
    driver.execute_script(axe)
    found = driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert not [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]]
    colours = (
        "return [...new Set([...document.querySelectorAll('td, th, strong')].map(e =>"
        " getComputedStyle(e).color))]"
    )
    assert driver.execute_script(colours) == [
        "rgb(0, 0, 0)" if scheme == "light" else "rgb(255, 255, 255)"
    ]


def test_on_a_phone_only_the_box_of_a_wide_table_scrolls(notebook, see):
    driver = see(notebook, width=390)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
