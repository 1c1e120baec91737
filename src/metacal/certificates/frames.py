"""Conversion of certificates to data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from metacal import display
from metacal.certificates.counts import COUNTS_THAT_NEED_LABELS

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate
    from metacal.certificates.subgroups import Name, SubgroupCertificate

#: Attributes that become the columns of a data frame.
_FRAME_COLUMNS = (
    "threshold",
    "n_rows",
    "n_correct",
    "n_accepted",
    "n_correct_accepted",
    "coverage",
    "selective_accuracy",
)


def make_certificate_frame(certificate: Certificate) -> Any:
    """Convert the thresholds and counts of a certificate to a `pandas.DataFrame`.

    Parameters
    ----------
    certificate : Certificate
        Certificate with one threshold, or with one threshold for each subgroup.

    Returns
    -------
    pandas.DataFrame
        A row for each subgroup, or a single row if there is one threshold for all rows.
    """
    certificates: Sequence[Certificate | SubgroupCertificate]
    if certificate.subgroups is None:
        certificates = (certificate,)
        row_names: list[Name] = ["all rows"]
        index_name = "rows"
    else:
        certificates = certificate.subgroups.items
        row_names = [subgroup.label for subgroup in certificate.subgroups.items]
        index_name = certificate.subgroups.by
    records = []
    for row_certificate in certificates:
        record = {name: getattr(row_certificate, name) for name in _FRAME_COLUMNS}
        if not certificate.has_labels:
            record |= dict.fromkeys(COUNTS_THAT_NEED_LABELS, None)
        records.append(record)
    return display.make_frame(records, row_names, [index_name])
