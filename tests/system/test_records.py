"""CSV files that are whole after a killed process."""

import pytest

from cowclip_merlin.system.records import append_rows, write_rows


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_rows_follow_the_columns(tmp_path, end):
    file, columns = tmp_path / "a.csv", ("x", "y")
    append_rows(file, columns, [{"x": 1, "y": "a,b"}], line_end=end)
    append_rows(file, columns, [{"y": 2}, {"x": None, "y": "ä"}], line_end=end)
    appended = file.read_bytes()
    assert appended.decode().split(end) == ["x,y", '1,"a,b"', ",2", ",ä", ""]
    rows = [{"x": 1, "y": "a,b"}, {"y": 2}, {"x": None, "y": "ä"}]
    write_rows(file, columns, rows, line_end=end)
    assert file.read_bytes() == appended


def test_a_line_that_was_cut_anywhere_is_dropped(tmp_path):
    file, columns = tmp_path / "a.csv", ("x", "y")
    for number in range(2):
        append_rows(file, columns, [{"x": number, "y": "text"}])
    whole = file.read_bytes()
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        append_rows(file, columns, [{"x": 9, "y": 9}])
        lines = file.read_text().splitlines()
        kept = max(whole[:size].count(b"\n"), 1)
        assert lines == [*whole.decode().splitlines()[:kept], "9,9"]
