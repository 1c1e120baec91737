r"""A router in front of an OpenAI-style server: a small model answers what a certificate lets it, a
large one the rest.

    python examples/route_models.py cascade.json questions.jsonl http://127.0.0.1:8000/v1
    small-model large-model

First, once: ask both models some hundred questions with `"logprobs": true`, write a line for each
with the small model's response and whether the two answers are the same, and certify the threshold:

    metacal cascade both.jsonl --score-key 'mean(small.choices[0].logprobs.content[*].logprob)' \
        --agree-key same --max-loss 0.01 -o cascade.json

Then this router asks the small model, and the large one only where the certificate does not cover
the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

import metacal as mc
from metacal.io.responses import sequence_scores


@dataclass(frozen=True)
class Router:
    """Answers questions by the cheaper of two models where its log-probabilities allow it."""

    gate: mc.Gate
    url: str
    small: str
    large: str

    def ask(self, model: str, question: str) -> dict[str, Any]:
        """One chat completion, with the log-probability of each token."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "logprobs": True,
        }
        request = Request(
            f"{self.url}/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urlopen(request) as response:
            found: dict[str, Any] = json.load(response)
            return found

    def answer(self, questions: Iterable[str]) -> Iterator[dict[str, Any]]:
        """The answer to each question, and who gave it; without log-probabilities it is the large
        model.
        """
        for question in questions:
            response, by = self.ask(self.small, question), self.small
            score = sequence_scores([response])["mean_logprob"]
            if not bool(self.gate.accepts(np.asarray(score))[0]):
                response, by = self.ask(self.large, question), self.large
            yield {
                "question": question,
                "answer": response["choices"][0]["message"]["content"],
                "answered_by": by,
            }


def main(saved: str, questions: str, url: str, small: str, large: str) -> None:
    """Answer every question of a file of JSON lines, one line each."""
    router = Router(mc.load_gate(saved), url.rstrip("/"), small, large)
    with open(questions, encoding="utf-8") as file:
        for found in router.answer(json.loads(line)["question"] for line in file):
            print(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main(*sys.argv[1:])
