"""Check and run one model file in a process of its own, with limits on memory and time: models come
from anywhere.

Run as a script, not imported: `python probe.py MODEL FOLDER MEMORY_BYTES SECONDS`. It knows onnx,
onnxruntime, NumPy. Where the folder has no inputs.npz, inputs are made up from the model's own
description. The reply (reply.json there, arrays in answers.npz) says how far it came.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from typing import Any

import numpy as np

#: Entries of a made-up input, at most.
_MOST_ENTRIES = 1 << 24
#: What an unknown dimension may be: the first, then the others.
_GUESSES = ((3, 8), (1, 1), (2, 64), (2, 224), (1, 32), (1, 8), (1, 224))
#: The usual channels of an image: the second of four dimensions.
_CHANNELS = 3
#: The node that fails where a model's logits do not have one column per class: part of its name.
GUARD = "metacal/one_column_per_class"
#: What onnxruntime calls otherwise than NumPy.
_NAMES = {"float": "float32", "double": "float64", "string": "str"}


def main(model: str, folder: str, memory_bytes: str, seconds: str) -> None:
    """Check and run a model, under these limits."""
    import onnx.checker
    import onnxruntime

    _limit(int(memory_bytes), int(seconds))
    reply = _answered(model, folder, onnx.checker.check_model, onnxruntime)
    with open(os.path.join(folder, "reply.json"), "w", encoding="utf-8") as file:
        json.dump(reply, file)


def _answered(model: str, folder: str, check_model: Any, onnxruntime: Any) -> dict[str, Any]:
    reply: dict[str, Any] = {"stage": "check"}
    try:
        check_model(model)
        reply["stage"] = "load"
        session = _session(onnxruntime, model)
        reply["metadata"] = dict(session.get_modelmeta().custom_metadata_map)
        # Text makes no array without pickled objects, and is no answer of a gate.
        tensors = [output for output in session.get_outputs() if output.type.startswith("tensor(")]
        reply["answers"] = [output.name for output in tensors if output.type != "tensor(string)"]
        reply["stage"] = "run"
        answers, reply["why_not"], reply["made_up"] = _run(session, reply["answers"], folder)
        reply["stage"] = "ran" if answers is not None else "loaded"
        np.savez(os.path.join(folder, "answers.npz"), *(answers or []))
    except Exception as error:
        reply["error"] = " ".join(str(error).split())[:600] or type(error).__name__
    return reply


def _limit(memory_bytes: int, seconds: int) -> None:
    """Beyond these the system ends this process, not the machine's patience."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + memory_bytes, now + memory_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _session(onnxruntime: Any, path: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _kind(kind: str) -> Any:
    """NumPy's type for onnxruntime's; None for what is no tensor, or of numbers that NumPy has
    not.
    """
    name = kind.removeprefix("tensor(").removesuffix(")")
    with contextlib.suppress(TypeError):
        return np.dtype(_NAMES.get(name, name)) if name != kind else None
    return None


def _run(session: Any, names: list[str], folder: str) -> tuple[list[Any] | None, str, int]:
    """The model's answers to the inputs of a folder, or to made-up ones. Where none of those fits:
    None, and why.

    And what made-up whole numbers were: all one, or all zero.
    """
    if os.path.exists(inputs := os.path.join(folder, "inputs.npz")):
        with np.load(inputs, allow_pickle=False) as arrays:
            return session.run(names, {name: arrays[name] for name in arrays.files}), "", 1
    kinds = {source.name: _kind(source.type) for source in session.get_inputs()}
    for source in session.get_inputs():
        if kinds[source.name] is None:
            return (
                None,
                f"its input {source.name!r} is a {source.type}, for which no values can be made up",
                1,
            )
    why = "its inputs are too large to be made up"
    whole = any(kind.kind in "iu" for kind in kinds.values())
    for guess, number in itertools.product(_GUESSES, (1, 0) if whole else (1,)):
        made_up = _feed(session.get_inputs(), kinds, guess, number)
        if made_up is None:
            continue
        try:
            return session.run(names, made_up), "", number
        except Exception as error:
            why = " ".join(str(error).split())[:600] or type(error).__name__
            if GUARD in why:  # not a matter of the inputs
                raise
    return None, why, 1


def _feed(
    sources: list[Any], kinds: dict[str, Any], guess: tuple[int, int], number: int
) -> dict[str, Any] | None:
    """Values for every input; dimensions of one name get one size."""
    sizes: dict[str, int] = {}
    feed = {}
    for source in sources:
        dims = []
        for place, dim in enumerate(source.shape):
            usual = (
                guess[0]
                if place == 0
                else _CHANNELS
                if place == 1 and len(source.shape) == 4
                else guess[1]
            )
            known = dim if isinstance(dim, int) and dim > 0 else None
            dims.append(known or (sizes.setdefault(dim, usual) if isinstance(dim, str) else usual))
        if int(np.prod(dims, dtype=object)) > _MOST_ENTRIES:
            return None
        feed[source.name] = _made_up(kinds[source.name], dims, number)
    return feed


def _made_up(kind: Any, dims: list[int], number: int) -> Any:
    rng = np.random.default_rng(0)
    if kind.kind == "f":
        return rng.normal(size=dims).astype(kind)
    if kind == np.uint8:
        return rng.integers(0, 256, size=dims).astype(kind)
    return np.full(dims, "a" if kind.kind == "U" else number).astype(kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
