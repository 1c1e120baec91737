"""Score the product pairs of Walmart-Amazon with a small matcher, for benchmarks on record linkage.

    git clone https://github.com/megagonlabs/ditto
    python -m benchmarks.train.pairs ditto/data/er_magellan/Structured/Walmart-Amazon \
        --out DATA/matching_walmart_amazon.npz

The folder has the pairs of the Magellan project as the repository of Ditto (Li et al. 2020, Apache-2.0)
divides them: `train.txt`, `valid.txt` and `test.txt`. A line holds two records and whether they match.
Gradient boosting on similarities of the two records is fitted on the training pairs, and scores the
pairs of the other two files. About one pair in eleven is a match. The file has the columns of the other
`matching_*.npz` files: the score of each pair, whether it is correct, and the number of its left record.

Less than a minute on one core. The settings of the matcher are scikit-learn's defaults.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer

ATTRIBUTES = ("title", "category", "brand", "modelno", "price")
#: Attributes of which the letters and words are compared. The price is compared as a number.
TEXT_ATTRIBUTES = ATTRIBUTES[:-1]
_ATTRIBUTE_PATTERN = re.compile(r"COL (\S+) VAL (.*?)(?=COL |$)")

Record = dict[str, str]


@dataclass(frozen=True)
class Pairs:
    """Pairs of records, and whether each is a match."""

    left: list[Record]
    right: list[Record]
    is_match: np.ndarray

    def number_left_records(self) -> np.ndarray:
        """Number the distinct left records."""
        texts = ["|".join(record.values()) for record in self.left]
        return np.unique(texts, return_inverse=True)[1].astype(np.int32)


def parse_record(text: str) -> Record:
    """Parse "COL title VAL ... COL price VAL ..." into the text of each attribute.

    >>> parse_record("COL title VAL usb cable COL price VAL 4.5 ")["price"]
    '4.5'
    """
    found = {name: value.strip() for name, value in _ATTRIBUTE_PATTERN.findall(text)}
    return {name: found.get(name, "") for name in ATTRIBUTES}


def read_pairs(path: Path) -> Pairs:
    """Read a file of pairs."""
    fields = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return Pairs(
        left=[parse_record(line[0]) for line in fields],
        right=[parse_record(line[1]) for line in fields],
        is_match=np.array([line[2].strip() == "1" for line in fields]),
    )


def join_pairs(first: Pairs, second: Pairs) -> Pairs:
    """Put the pairs of two files one after the other."""
    return Pairs(
        left=first.left + second.left,
        right=first.right + second.right,
        is_match=np.concatenate([first.is_match, second.is_match]),
    )


# ── similarities ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Similarities:
    """Similarities of two records, with the frequencies of words and letters in the training pairs."""

    word_weights: TfidfVectorizer
    letter_weights: TfidfVectorizer

    @classmethod
    def fit(cls, pairs: Pairs) -> Similarities:
        """Count the words and the letters of all records."""
        texts = [" ".join(record.values()) for record in (*pairs.left, *pairs.right)]
        return cls(
            word_weights=TfidfVectorizer(token_pattern=r"\S+").fit(texts),
            letter_weights=TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4)).fit(texts),
        )

    def compute(self, pairs: Pairs) -> np.ndarray:
        """Compute the similarities of all pairs, a column for each."""
        columns = []
        for name in TEXT_ATTRIBUTES:
            left = [record[name] for record in pairs.left]
            right = [record[name] for record in pairs.right]
            columns += [
                compute_cosines(self.word_weights, left, right),
                compute_cosines(self.letter_weights, left, right),
            ]
        columns += [
            compute_cosines(
                self.word_weights,
                [" ".join(record.values()) for record in pairs.left],
                [" ".join(record.values()) for record in pairs.right],
            )
        ]
        of_single_pairs = [compare_pair(*pair) for pair in zip(pairs.left, pairs.right)]
        return np.column_stack([*columns, np.array(of_single_pairs)])


def compute_cosines(weights: TfidfVectorizer, left: list[str], right: list[str]) -> np.ndarray:
    """Compute the cosine similarity of each pair of texts."""
    product = weights.transform(left).multiply(weights.transform(right))
    return np.asarray(product.sum(axis=1)).ravel()


def compare_pair(left: Record, right: Record) -> list[float]:
    """Compute the similarities of one pair that need no frequencies; NaN if an entry is missing."""
    similarities = [compare_texts(left[name], right[name]) for name in TEXT_ATTRIBUTES]
    similarities += [
        contains(left["modelno"], right["title"]),
        contains(right["modelno"], left["title"]),
        share_of_numbers(left["title"], right["title"]),
        compare_prices(left["price"], right["price"]),
    ]
    return similarities


def compare_texts(left: str, right: str) -> float:
    """Return the share of equal letters of two texts."""
    if not left or not right:
        return np.nan
    return SequenceMatcher(None, left, right, autojunk=False).ratio()


def contains(part: str, text: str) -> float:
    """Return 1 if a text contains a part, apart from spaces and punctuation, and 0 if not."""
    letters = re.sub(r"[^a-z0-9]", "", part)
    if not letters or not text:
        return np.nan
    return float(letters in re.sub(r"[^a-z0-9]", "", text))


def share_of_numbers(left: str, right: str) -> float:
    """Return the share of the words with digits that two texts have in common."""
    left_words, right_words = (set(re.findall(r"\S*\d\S*", text)) for text in (left, right))
    if not left_words or not right_words:
        return np.nan
    return len(left_words & right_words) / len(left_words | right_words)


def compare_prices(left: str, right: str) -> float:
    """Return the difference of the logarithms of two prices."""
    try:
        prices = np.array([float(left), float(right)])
    except ValueError:
        return np.nan
    if prices.min() <= 0.0:
        return np.nan
    return float(np.abs(np.diff(np.log(prices))[0]))


def score_pairs(folder: Path) -> dict[str, Any]:
    """Fit the matcher on the training pairs, and score the others."""
    training_pairs = read_pairs(folder / "train.txt")
    pairs = join_pairs(read_pairs(folder / "valid.txt"), read_pairs(folder / "test.txt"))
    similarities = Similarities.fit(training_pairs)
    model = HistGradientBoostingClassifier(random_state=0)
    model.fit(similarities.compute(training_pairs), training_pairs.is_match)
    return {
        "score": model.predict_proba(similarities.compute(pairs))[:, 1],
        "correct": pairs.is_match,
        "record": pairs.number_left_records(),
    }


def main() -> None:
    """Score the pairs, and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    columns = score_pairs(options.folder)
    np.savez_compressed(options.out, **columns)
    print(
        f"{len(columns['score']):,} pairs, {columns['correct'].mean():.1%} matches: {options.out}"
    )


if __name__ == "__main__":
    main()
