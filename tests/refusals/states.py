"""What a list of files cannot say: functions that change the folder in which a command runs."""

import gzip
import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq


def labels_of_0(folder):
    log = folder / "log.txt"
    log.write_bytes(b"".join(b"0" + line[1:] for line in log.read_bytes().splitlines(True)))


def bad_lines(folder):
    log = folder / "log.txt"
    log.write_bytes(b"\n".join([*log.read_bytes().splitlines()[:50], b"x"] * 2))


def cut_gzip(folder):
    whole = gzip.compress((folder / "log.txt").read_bytes()[:100_000])
    (folder / "log.txt.gz").write_bytes(whole[:-200])


def link(folder, name, target):
    (folder / name).symlink_to(target)


def copied(folder, source, target):
    shutil.copytree(folder / source, folder / target)


def binary_header(folder):
    (folder / "t.csv").write_bytes(b"\0" * 5000 + b"\ny,a,b\n0,1,1\n")


def column_twice(folder, *names):
    table = pa.table([[0, 1]] * (len(names) + 1), names=[*names, names[-1]])
    pq.write_table(table, folder / "t.parquet")


def cut(folder, name, size=-100):
    """Cut files short, at a size or that many bytes from their ends."""
    for file in folder.glob(name):
        file.write_bytes(file.read_bytes()[:size])


def value(folder, split, column, index, new):
    """Replace one value of a prepared column, or all; the case empties the checksums."""
    (file,) = (folder / "data" / split).glob("*.parquet")
    table = pq.read_table(file)
    values = [new if index in (None, i) else x for i, x in enumerate(table[column].to_pylist())]
    at, kind = table.column_names.index(column), table.schema.field(column).type
    pq.write_table(table.set_column(at, column, pa.array(values, kind)), file)


def without_column(folder, column):
    for file in (folder / "data/train").glob("*.parquet"):
        pq.write_table(pq.read_table(file).drop_columns([column]), file)


def without_row(folder, name):
    pq.write_table(pq.read_table(folder / name).slice(1), folder / name)


def with_row(folder, name):
    table = pq.read_table(folder / name)
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), folder / name)


def digits(folder, name, text):
    """Write a text with a number of 5000 digits."""
    (folder / name).write_text(text.replace("DIGITS", "9" * 5000))


def flipped(folder, name, position=None):
    """Invert eight bytes of files, in their middle unless told."""
    for file in folder.glob(name):
        content = bytearray(file.read_bytes())
        at = (len(content) // 2 if position is None else position) % len(content)
        content[at : at + 8] = bytes(255 - byte for byte in content[at : at + 8])
        file.write_bytes(bytes(content))


def written(folder, name, text, times):
    (folder / name).write_text(text * times)


def l2_of_400_digits(folder):
    file = folder / "run/config.json"
    config = json.loads(file.read_text())
    config["hyperparameters"]["l2"] = 10**400
    file.write_text(json.dumps(config))


def edited(folder, name, before, after, start=""):
    """Replace a text wherever it stands in a file, or in the part that begins with `start`."""
    text = (folder / name).read_bytes().decode()
    at = text.index(start)
    text = text[:at] + text[at:].replace(before, after)
    (folder / name).write_bytes(text.encode(errors="surrogateescape"))


def pipe(folder, name):
    os.mkfifo(folder / name)
