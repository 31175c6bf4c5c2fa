"""Paths that are no addresses: refused in one line, before anything is made."""

import pytest

from cowclip_merlin.cli import main

HERE = "give a path on this machine"
ONLINE_MODEL = "--model deepfm --batch-size 8"
JOIN = "online join --impressions I --actions A --to T --features f.yaml --window 1min"


@pytest.mark.parametrize(
    ("command", "path", "told"),
    [
        ("export RUN DATA --out s3://a/b", "s3://a/b", f"export writes to no address; {HERE}"),
        ("generate --rows 9 --out s3://a/b", "s3://a/b", f"generate writes to no address; {HERE}"),
        ("bench --json s3://a/b", "s3://a/b", f"bench writes to no address; {HERE}"),
        ("report RESULTS --out s3://a/b", "s3://a/b", f"report writes to no address; {HERE}"),
        ("report s3://a/b --out r.html", "s3://a/b", f"RESULTS takes no address; {HERE}"),
        ("inspect RUN --out s3://a/b", "s3://a/b", f"inspect writes to no address; {HERE}"),
        ("experiment s3://a/b.yaml --data D", "s3://a/b.yaml", f"NAME takes no address; {HERE}"),
        ("sweep table2 --data D --out s3://a/b", "s3://a/b", f"sweep writes to no address; {HERE}"),
        ("online demo --work s3://a/b", "s3://a/b", f"--work takes no address; {HERE}"),
        ("online rollback s3://a/b", "s3://a/b", f"RUN takes no address; {HERE}"),
        (f"{JOIN} --state s3://a/b", "s3://a/b", f"--state takes no address; {HERE}"),
        (
            "online serve --from SYNC --token-file s3://a/b",
            "s3://a/b",
            f"--token-file takes no address; {HERE}",
        ),
        (
            f"online train --from E --features f --out s3://a/b {ONLINE_MODEL}",
            "s3://a/b",
            f"online train writes to no address; {HERE}",
        ),
        (
            "online produce --generate --features s3://a/b --to E",
            "s3://a/b",
            f"--features of --generate takes no address; {HERE}",
        ),
    ],
)
def test_one_line_says_so(command, path, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    assert capsys.readouterr().err == f"cowclip: error: {path}: {told}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        f"online train --from s3://a/b --features f.yaml --out RUN {ONLINE_MODEL}",
        f"online train --from E --features f.yaml --out RUN --to s3://a/b {ONLINE_MODEL}",
        "online produce day.csv --features f.yaml --to s3://a/b",
        "online serve --from s3://a/b",
        JOIN.replace("--actions A", "--actions s3://a/b") + " --state S",
    ],
)
def test_a_log_of_messages_is_a_folder_or_on_a_server(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    features = "label: click\ntime: time\nkey: id\ncategorical: [user]\n"
    (tmp_path / "f.yaml").write_text(features)
    (tmp_path / "day.csv").write_text("click,time,id,user\n1,1,a,u\n")
    for log in ("E", "I"):
        (tmp_path / log).mkdir()
    assert main(command.split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("cowclip: error: s3://a/b: unknown kind of log 's3'; give a folder,")
    assert told.count("\n") == 1 and not list(tmp_path.glob("s3:*"))
