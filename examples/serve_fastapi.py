"""A gated classifier as a web service: one file, onnxruntime, no metacal map in the serving path.

Attach a fitted gate to the classifier, then serve the file:

    metacal attach model.onnx cal.json --logits logits -o served.onnx
    METACAL_MODEL=served.onnx uvicorn --factory serve_fastapi:create_app

    POST /predict    {"inputs": [[…], …]}                       a batch of items, each shaped as the model wants it
    POST /feedback   {"outcomes": [{"id": …, "label": …}, …]}   the truth about earlier answers, once it is known
    GET  /promise    the certificate that came with the model
    GET  /metrics    for Prometheus
    GET  /healthz    whether the service is up

What cannot be read is answered with 422 and a reason, too large a body with 413, one that does not arrive in time with
408: JSON is taken by the letter (no NaN or Infinity, no key twice), and an input is a finite number, never a text, true
or null.

No single request stops the others. A body is counted before it is parsed: it may hold at most twice the values, lists
and objects that the model can use. Parsing and inference run in threads, not in the event loop. How many requests a
client may send is for the proxy in front of the service to limit.

Needs: onnxruntime, fastapi, uvicorn, prometheus-client, and metacal for the monitor of the promise
(`pip install "metacal[onnx,monitor]" fastapi uvicorn`).
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metacal.certificates.certificate import Certificate
from metacal.io.artifact.audit import decode_certificate
from metacal.promises.sequential.monitor import PromiseMonitor

#: The most items, bytes, numbers and lists in one request. Python parses JSON at one go, during
#: which no other request is served: so many take about a tenth of a second.
MOST_ITEMS, MOST_BYTES, MOST_VALUES, MOST_LISTS = 1024, 4 * 2**20, 2**18, 2**15
#: The most bytes of feedback: 256 for each of MOST_ITEMS outcomes.
MOST_FEEDBACK_BYTES = 256 * MOST_ITEMS
#: A client that has not sent its body after so many seconds is not waited for.
BODY_SECONDS = 20.0
#: Answers that wait for their truth; the oldest are forgotten first.
MOST_WAITING = 100_000

_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


class Strict(BaseModel):
    """What a client sends: nothing beyond the fields is taken, and nothing for what it is not (true
    is no 1).
    """

    model_config = ConfigDict(extra="forbid", strict=True)


class Batch(Strict):
    """Items to decide."""

    inputs: list[Any] = Field(min_length=1, max_length=MOST_ITEMS)


class Outcome(Strict):
    """The truth about one earlier answer."""

    id: str = Field(max_length=64)
    label: int | str


class Outcomes(Strict):
    """Truths, in the order the answers were given."""

    outcomes: list[Outcome] = Field(min_length=1, max_length=MOST_ITEMS)


Sent = TypeVar("Sent", bound=Strict)


@dataclass(frozen=True)
class BodyLimit:
    """How large a body may be, and how much it may hold. Counting is quick, parsing is not."""

    n_bytes: int
    n_values: int
    n_lists: int
    n_objects: int
    n_keys: int

    @classmethod
    def for_inputs(cls, shape: list[Any]) -> BodyLimit:
        """Return the limit of a batch of items of this shape; a dimension that is no number may
        have any length.

        It is twice what a batch can use, so that one that is a little too large is parsed and
        answered in detail.
        """
        n_values, n_lists = MOST_VALUES, MOST_LISTS
        if all(isinstance(length, int) for length in shape):
            n_values = min(MOST_VALUES, 2 * MOST_ITEMS * math.prod(shape))
            lists_of_an_item = sum(math.prod(shape[:depth]) for depth in range(len(shape)))
            n_lists = min(MOST_LISTS, 1 + 2 * MOST_ITEMS * lists_of_an_item)
        return cls(MOST_BYTES, n_values, n_lists, n_objects=64, n_keys=64)

    def check(self, body: bytes) -> None:
        """Raise HTTPException if a body is too large or holds too much."""
        if len(body) > self.n_bytes:
            raise HTTPException(
                413, f"the body is over {self.n_bytes:,} bytes; send smaller batches"
            )
        counts = (
            ("values", body.count(b","), self.n_values),
            ("lists", body.count(b"["), self.n_lists),
            ("objects", body.count(b"{"), self.n_objects),
            ("keys", body.count(b":"), self.n_keys),
        )
        for name, count, most in counts:
            if count > most:
                raise HTTPException(
                    422, f"the body holds more than {most:,} {name}; send smaller batches"
                )


#: An outcome has two commas and two colons of its own; others may stand in a label.
FEEDBACK_LIMIT = BodyLimit(
    n_bytes=MOST_FEEDBACK_BYTES,
    n_values=6 * MOST_ITEMS,
    n_lists=1 + MOST_ITEMS,
    n_objects=1 + MOST_ITEMS,
    n_keys=1 + 4 * MOST_ITEMS,
)


def body_of(kind: type[Sent], limit: BodyLimit) -> Callable[[Request], Awaitable[Sent]]:
    """Return a dependency that reads the body of a request as `kind`, or answers 408, 413 or
    422.
    """

    async def read(request: Request) -> Sent:
        content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content != "application/json":
            raise HTTPException(422, "send JSON, with the content type application/json")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.body()
        except TimeoutError:
            raise HTTPException(
                408, f"the body did not arrive within {BODY_SECONDS:g} seconds"
            ) from None
        limit.check(body)
        return await run_in_threadpool(_parse, body, kind)

    return read


def _parse(body: bytes, kind: type[Sent]) -> Sent:
    """Read a body as JSON by the letter, and as `kind`. Raise HTTPException if it is not."""
    try:
        text = body.decode("utf-8")
        found = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_short_int,
            object_pairs_hook=_each_key_once,
        )
    except RecursionError:
        raise HTTPException(422, "the body is nested too deeply") from None
    except (
        ValueError
    ) as error:  # of the encoding, of the JSON, of a number with thousands of digits
        raise HTTPException(422, f"the body is not JSON: {_readable(error)}") from None
    try:
        return kind.model_validate(found)
    except (
        ValidationError
    ) as error:  # without what was sent: NaN and half characters are no JSON to answer with
        said = [
            f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}"
            for one in error.errors()[:5]
        ]
        raise HTTPException(422, _readable("; ".join(said))) from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _short_int(digits: str) -> int:
    if len(digits) > 20:  # the time that int takes grows with the square of the length
        raise ValueError("a whole number beyond 64 bits")
    return int(digits)


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _readable(said: object) -> str:
    """A message that can be sent, whatever a client has put into it."""
    return str(said)[:500].encode("ascii", "backslashreplace").decode("ascii")


class Answer(BaseModel):
    """One decision. Where `accept` is false, `label` is only what the model would have said, if it
    tells.
    """

    id: str
    accept: bool
    label: int | str | None
    confidence: float
    score: float | None


class Answers(BaseModel):
    """The decisions of a batch, in its order."""

    predictions: list[Answer]


class Counted(BaseModel):
    """How many outcomes were known answers; the ids that were not."""

    counted: int
    unknown: list[str]


class GatedModel:
    """An ONNX classifier with an attached gate, and what its metadata says about it."""

    def __init__(self, path: str | Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("METACAL_THREADS", "1"))
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        said = self.session.get_modelmeta().custom_metadata_map
        if "metacal.certificate" not in said:
            raise RuntimeError(
                f"{path} has no gate; make one with: metacal attach {path} cal.json -o served.onnx"
            )
        self.certificate = decode_certificate(json.loads(said["metacal.certificate"]))
        self.classes: list[int | str] = json.loads(said["metacal.classes"])
        names = json.loads(said["metacal.outputs"])
        self.outputs = [names[name] for name in ("probs", "score", "accept")]
        # The prediction is the class with the largest logit, or an output of its own: for one logit,
        # and for promises about one of two classes. Probabilities may have another order.
        plain = said.get("metacal.logits")
        self.predicts = "prediction" in names
        has_logits = plain in [output.name for output in self.session.get_outputs()]
        self.tells = self.predicts or has_logits
        self.outputs.append(plain if has_logits else names["probs"])
        if self.predicts:
            self.outputs.append(names["prediction"])
        (source,) = self.session.get_inputs()
        self.name, self.dtype, self.shape = source.name, _DTYPES[source.type], source.shape[1:]

    def read(self, items: list[Any]) -> np.ndarray:
        """A batch as an array, or ValueError."""
        level: list[Any] = items
        for _ in range(2 + len(self.shape)):  # one more than an item has dimensions
            if not any(type(entry) is list for entry in level):
                break
            level = [
                inner for entry in level for inner in (entry if type(entry) is list else [entry])
            ]
        if not all(type(entry) in (int, float, list) for entry in level):
            raise ValueError("inputs must be numbers: no text, no true or false, no null")
        try:
            batch = np.asarray(items, dtype=np.float64)
        except (ValueError, TypeError, OverflowError):
            raise ValueError("inputs must be numbers, all items of one shape") from None
        fixed = [
            (have, want) for have, want in zip(batch.shape[1:], self.shape) if isinstance(want, int)
        ]
        if batch.ndim != 1 + len(self.shape) or any(have != want for have, want in fixed):
            raise ValueError(
                f"an item has shape {list(batch.shape[1:])}; this model wants {self.shape}"
            )
        with np.errstate(over="ignore"):
            batch = batch.astype(self.dtype)
        if not np.isfinite(batch).all():
            raise ValueError("inputs must be finite numbers")
        if any(type(entry) is int and not -(2**63) <= entry < 2**63 for entry in level):
            raise ValueError("a whole number beyond 64 bits is no input")
        return batch

    def decide(self, batch: np.ndarray) -> list[Answer]:
        """The answer to each item; ValueError where the model cannot take them (a side of length 0,
        say).
        """
        try:
            probs, score, accept, logits, *more = self.session.run(self.outputs, {self.name: batch})
        except Exception as error:  # onnxruntime's own classes are not public
            raise ValueError(
                f"the model does not run on inputs of shape {list(batch.shape)}"
            ) from error
        logits = logits.reshape(len(logits), -1)  # one logit may come without columns
        # The promise is about the prediction: the largest logit, unless the model says otherwise.
        winner = more[0] if self.predicts else logits.argmax(axis=1)
        clear = np.isfinite(logits.max(axis=1)) & np.isfinite(probs).all(
            axis=1
        )  # a model may overflow
        accept = accept & clear
        return [
            Answer(
                id=uuid.uuid4().hex,
                accept=bool(accept[i]),
                label=self.classes[winner[i]] if clear[i] and (accept[i] or self.tells) else None,
                confidence=float(probs[i, winner[i]]) if clear[i] else 1.0 / len(self.classes),
                score=float(score[i]) if np.isfinite(score[i]) else None,
            )
            for i in range(len(batch))
        ]


class Watch:
    """Prometheus metrics, the answers that wait for their truth, and the evidence against the
    promise.
    """

    def __init__(self, certificate: Certificate) -> None:
        self.registry = CollectorRegistry()
        new: dict[str, Any] = {"registry": self.registry}
        self.decisions = Counter("metacal_decisions", "Items by decision.", ["decision"], **new)
        self.outcomes = Counter(
            "metacal_outcomes", "Labelled items.", ["decision", "correct"], **new
        )
        self.confidence = Histogram(
            "metacal_confidence",
            "Calibrated confidence of accepted items.",
            buckets=np.linspace(0.1, 1.0, 19),
            **new,
        )
        limit = Gauge(
            "metacal_promised_limit", "What the certificate promises.", ["quantity"], **new
        )
        for quantity, target in certificate.limits:
            limit.labels(quantity).set(target)
        evidence = Gauge(
            "metacal_evidence_against_promise", "E-value on labelled items.", ["quantity"], **new
        )
        alarm = Gauge(
            "metacal_alarm", "1 once a promise is refuted, false alarms 5%.", ["quantity"], **new
        )
        self.monitors = PromiseMonitor.of(certificate, delta=0.05)
        for monitor in self.monitors:
            evidence.labels(monitor.quantity).set_function(lambda monitor=monitor: monitor.evidence)
            alarm.labels(monitor.quantity).set_function(
                lambda monitor=monitor: float(monitor.alarm)
            )
        self._waiting: OrderedDict[str, tuple[bool, int | str]] = OrderedDict()
        self._lock = threading.Lock()

    def answered(self, answers: list[Answer]) -> None:
        """Count a batch of answers and remember them."""
        kept = sum(answer.accept for answer in answers)
        self.decisions.labels("accepted").inc(kept)
        self.decisions.labels("rejected").inc(len(answers) - kept)
        for answer in answers:
            if answer.accept:
                self.confidence.observe(answer.confidence)
        with self._lock:
            told = [answer for answer in answers if answer.label is not None]
            self._waiting.update((answer.id, (answer.accept, answer.label)) for answer in told)
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popitem(last=False)

    def labelled(self, outcomes: list[Outcome]) -> Counted:
        """Count the truth about earlier answers, each once."""
        with self._lock:
            found = [(self._waiting.pop(outcome.id, None), outcome) for outcome in outcomes]
            known = [
                (kept, said == outcome.label)
                for (kept, said), outcome in ((a, o) for a, o in found if a)
            ]
            if known:
                accepted, correct = (list(column) for column in zip(*known))
                for monitor in self.monitors:
                    monitor.update(accepted, correct)
        for kept, right in known:
            self.outcomes.labels("accepted" if kept else "rejected", str(right).lower()).inc()
        return Counted(
            counted=len(known), unknown=[outcome.id for answer, outcome in found if answer is None]
        )


class LimitBody:
    """Refuse a body over the limit, announced or not, before it is in memory."""

    def __init__(self, app: ASGIApp, most: int = MOST_BYTES) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what comes in."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise HTTPException(
                    413, f"the body is over {self.most:,} bytes; send smaller batches"
                )
            return message

        await self.app(scope, counted if scope["type"] == "http" else receive, send)


def create_app(path: str | Path | None = None) -> FastAPI:
    """The service for one model file; by default the one that METACAL_MODEL names."""
    model = GatedModel(path or os.environ["METACAL_MODEL"])
    watch = Watch(model.certificate)
    app = FastAPI(title="Gated classifier", description=model.certificate.statement)
    app.add_middleware(LimitBody)
    read_batch = body_of(Batch, BodyLimit.for_inputs(model.shape))
    read_outcomes = body_of(Outcomes, FEEDBACK_LIMIT)
    classes = set(model.classes)

    @app.post("/predict")
    def predict(batch: Batch = Depends(read_batch)) -> Answers:  # noqa: B008
        try:
            answers = model.decide(model.read(batch.inputs))
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        watch.answered(answers)
        return Answers(predictions=answers)

    @app.post("/feedback")
    def feedback(truths: Outcomes = Depends(read_outcomes)) -> Counted:  # noqa: B008
        strangers = [outcome.label for outcome in truths.outcomes if outcome.label not in classes]
        if strangers:
            raise HTTPException(422, f"{strangers[0]!r} is not one of the model's classes")
        return watch.labelled(truths.outcomes)

    @app.get("/promise")
    def promise() -> dict[str, Any]:
        return model.certificate.to_dict(words=True)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(watch.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    # A batch makes many lists, after which Python looks through all that was ever loaded for
    # garbage. There is none.
    gc.collect()
    gc.freeze()
    return app
