"""Lines of a stream: what a broken header leaves behind."""

import pytest

from metacal.io.request import Request
from metacal.io.stream import StreamReader
from metacal.io.stream_layout import HeaderError


def test_rows_after_an_unsuitable_header_are_still_rows():
    """A rotated log may begin with a damaged line; the rows below it must not be lost."""
    reader = StreamReader(Request("log.csv", label_key="y"), "csv")
    assert reader.parse_line(1, b"id,a,b,y") is None
    with pytest.raises(HeaderError):
        reader.parse_line(1, b"id,a,b")  # the next file: its header lacks the label column
    record = reader.parse_line(2, b"7,0.5,0.25,1")
    assert record.row == (0.5, 0.25)
    assert record.label == "1"
