"""Mistakes in `config.json` of a run folder, which a user may have edited."""

import json

import pytest


def evaluation_of_edited(p, **changes):
    run = p.run()
    p.edited_json(run / "config.json", **changes)
    return p.evaluate(run, p.data())


def evaluation_with_l2(p, value):
    run = p.run()
    values = json.loads((run / "config.json").read_text())["hyperparameters"]
    p.edited_json(run / "config.json", hyperparameters=values | {"l2": value})
    return p.evaluate(run, p.data())


def resume_without_the_seed(p):
    run = p.run()
    settings = json.loads((run / "config.json").read_text())["settings"]
    del settings["seed"]
    p.edited_json(run / "config.json", settings=settings)
    return p.train(p.data(), "--resume", out=run.name)


def run_with_config(p, text):
    run = p.run()
    (run / "config.json").write_text(text)
    return p.evaluate(run, p.data())


# name -> (command, what the line must hold)
CASES = {
    "rate of config.json that is a text": (
        lambda p: evaluation_with_l2(p, "x"),
        r"config\.json \(l2 is 'x',",
    ),
    "rate of config.json above all floats": (
        lambda p: evaluation_with_l2(p, 10**400),
        r"config\.json \(l2 is 10{39},",
    ),
    "vocabulary of config.json that is a list": (
        lambda p: evaluation_of_edited(p, data_vocabulary=["a"]),
        r"config\.json \(data_vocabulary is \['a'\],",
    ),
    "config.json without the seed": (resume_without_the_seed, r"config\.json \(seed is missing\)"),
    "config.json that is nested too deeply": (
        lambda p: run_with_config(p, "[" * 100_000),
        r"config\.json: damaged JSON \(maximum recursion",
    ),
    "config.json with a number of 5000 digits": (
        lambda p: run_with_config(p, "9" * 5000),
        r"config\.json: damaged JSON \(.*5000 digits",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_exit_code_2(case, refused):
    refused(*CASES[case])
