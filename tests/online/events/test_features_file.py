import pytest

from cowclip_merlin.errors import InputError
from cowclip_merlin.online.events.features import CategoricalColumn, ListRules
from cowclip_merlin.online.events.features_file import load_features
from cowclip_merlin.online.events.numbers import NumberScaling
from cowclip_merlin.tables.field_rules import FieldRules

LIST = "label: y\ntime: t\n"


def test_a_whole_file(features_file):
    features = features_file()
    assert (features.label, features.time, features.key) == ("click", "time", "request")
    assert features.categorical == (
        CategoricalColumn(name="user", rules=FieldRules(ttl=0, admit=1)),
        CategoricalColumn(name="item", rules=FieldRules(ttl=5 * 86_400, admit=2)),
    )
    assert [c.scaling for c in features.continuous] == [
        NumberScaling(transform="signed_log"),
        NumberScaling(transform="none", lower=0, upper=100),
    ]
    assert features.inputs == ("user", "item", "price", "age")


@pytest.mark.parametrize(
    ("ttl", "seconds"), [("90", 90), ("45s", 45), ("30min", 1800), ("5h", 18_000), ("2d", 172_800)]
)
def test_times_to_live(features_file, ttl, seconds):
    assert (
        features_file(LIST + f"categorical: [{{name: a, ttl: {ttl}}}]\n").categorical[0].rules.ttl
        == seconds
    )


def test_rules_for_a_growing_table(features_file):
    text = "categorical:\n- a\n- {name: b, ttl: 1d, admit: 3, min_rows: 50}\n"
    rules = features_file(LIST + text).rules
    assert rules == {"a": FieldRules(), "b": FieldRules(ttl=86_400, admit=3, min_rows=50)}


def test_columns_with_several_values(features_file):
    text = "categorical:\n- a\n- {name: b, separator: ';', max_values: 9, keep: last}\n"
    text += "- {name: c, separator: ', ', combiner: sum}\n"
    assert features_file(LIST + text).lists == {
        "b": ListRules(separator=";", max_values=9, keep="last"),
        "c": ListRules(separator=", ", combiner="sum"),
    }


def test_time_and_key_may_be_categorical_too(features_file):
    features = features_file(LIST + "key: k\ncategorical: [t, k]\n")
    assert features.identifiers == ("t", "k")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("time: t\ncategorical: [a]\n", "line 1: no 'label'; "),
        ("label: y\ncategorical: [a]\n", "line 1: no 'time'"),
        ("label: 3\ntime: t\ncategorical: [a]\n", "line 1: label is 3; "),
        ("label: y\ntime: {nme: t}\n", "line 2: unknown 'nme'; .*name, format"),
        ("label: y\ntime: {name: t}\n", "line 2: format is None; "),
        ("label: y\ntime: {name: t, format: '%H'}\n", "line 2: format is '%H'; "),
        ("label: y\ntime: {format: '%Y%m%d'}\n", "line 2: name of .* is None"),
        (LIST, "line 1: names no categorical"),
        (LIST + "categorical: a\n", "line 3: categorical is 'a'; "),
        (LIST + "categorical:\n- a\n- 7\n", "line 5: .*categorical column 2 is 7"),
        (LIST + "categorical: [a]\ntypo: 1\n", "line 4: unknown 'typo'; .*label, time"),
        (LIST + "categorical:\n- name: a\n  tll: 1d\n", "line 5: unknown 'tll'; .*name"),
        (LIST + "categorical:\n- {name: a, ttl: soon}\n", "line 4: ttl of 'a' is 'soon'; "),
        (LIST + "categorical:\n- {name: a, ttl: 0}\n", "line 4: ttl of 'a' is 0; "),
        (LIST + "categorical:\n- {name: a, ttl: true}\n", "line 4: ttl of 'a' is True"),
        (LIST + "categorical:\n- {name: a, ttl: 9999999d}\n", "line 4: ttl of 'a'"),
        (LIST + "categorical:\n- a\n- {name: b, admit: 0}\n", "line 5: admit of 'b' is 0; "),
        (LIST + "categorical:\n- {name: a, min_rows: -1}\n", "line 4: min_rows of 'a' is -1; "),
        (LIST + "categorical:\n- {name: a, min_rows: x}\n", "line 4: min_rows of 'a' is 'x'"),
        (LIST + "categorical:\n- {name: a, admit: 256}\n", "line 4: admit of 'a' is 256"),
        (
            LIST + "categorical:\n- a\n- name: b\n  ttl: 1d\n  buckets: 0\n",
            "line 7: buckets of 'b' is 0; .* 2,147,483,647",
        ),
        (LIST + "categorical:\n- {name: a, buckets: true}\n", "line 4: buckets of 'a' is True"),
        (
            LIST + "categorical:\n- {name: a, buckets: 2147483648}\n",
            "line 4: buckets of 'a' is 2147483648; ",
        ),
        (
            LIST + "categorical:\n- a\n- name: b\n  combiner: sum\n",
            "line 6: combiner of 'b' has no effect without separator; ",
        ),
        (
            LIST + "categorical: [{name: a, separator: '|', keep: last}]\n",
            "line 3: keep of 'a' has no effect without max_values; ",
        ),
        (LIST + "categorical: [{name: a, separator: ''}]\n", "separator of 'a' is ''; "),
        (LIST + "categorical: [{name: a, separator: 1}]\n", "separator of 'a' is 1; give text"),
        (
            LIST + "categorical: [{name: a, separator: '|', combiner: max}]\n",
            "line 3: combiner of 'a' is 'max'; choose one of mean, sum, sqrtn",
        ),
        (
            LIST + "categorical: [{name: a, separator: '|', max_values: 0}]\n",
            "line 3: max_values of 'a' is 0; ",
        ),
        (
            LIST + "categorical: [{name: t, separator: '|'}]\n",
            "line 3: column 't' is also time, of which a row has one; remove its separator",
        ),
        (LIST + "categorical: [{name: a, text: 1}]\n", "line 3: text of 'a' is 1; give true or f"),
        (
            LIST + "categorical: [a, {name: b, table: a, text: true}]\n",
            "line 3: text of 'b' has no effect, as it has the ids of 'a'",
        ),
        (LIST + "categorical: [a, a]\n", "line 3: column 'a' is also categorical"),
        (LIST + "categorical: [y]\n", "line 3: column 'y' is also label"),
        (LIST + "categorical: [a]\ncontinuous: [a]\n", "line 4: column 'a' is also categorical"),
        (
            LIST + "categorical: [a]\ncontinuous: [cowclip_sample_rate]\n",
            "line 4: column 'cowclip_sample_rate' is .*cowclip online join",
        ),
        ("label: cowclip_late\ntime: t\ncategorical: [a]\n", "line 1: column 'cowclip_late' is"),
        (LIST + "continuous: [{name: x, transform: sqrt}]\n", "line 3: 'x': transform is 'sqrt'; "),
        (LIST + "continuous: [{name: x, transform: [1]}]\n", r"'x': transform is \[1\]"),
        (LIST + "continuous: [{name: x, minimum: 1}]\n", "'x': has one of minimum"),
        (LIST + "continuous: [{name: x, minimum: a, maximum: 1}]\n", "'x': minimum is 'a'; "),
        (LIST + "continuous: [{name: x, minimum: 0, maximum: .inf}]\n", "'x': maximum is inf"),
        (LIST + f"continuous: [{{name: x, minimum: 0, maximum: {10**400}}}]\n", "maximum is 10000"),
        (LIST + "continuous: [{name: x, minimum: 2, maximum: 2}]\n", "give a larger maximum"),
        (
            LIST + "continuous: [{name: x, transform: log, minimum: -9, maximum: -1}]\n",
            "line 3: 'x': minimum is -9 and maximum -1, .*'log'",
        ),
        (LIST + "categorical: [a]\ncolumns: []\n", r"line 4: columns is \[\]; "),
        (LIST + "categorical: [a]\ncolumns: [y, t, y]\n", "line 4: column 'y' twice"),
        (
            LIST + "categorical: [a]\ncolumns: [y, t]\n",
            "line 3: column 'a' is not among the columns",
        ),
        (LIST + "categorical: [a]\nprepared: none\n", "line 4: .*none: no such folder"),
        ("- a\n", "is not a mapping; "),
        ("label: y\nlabel: z\n", "not valid YAML"),
        ("label: [\n", "not valid YAML"),
        ("label: " + 5000 * "[", "nested too deeply"),
        (LIST + f"categorical:\n- {{name: a, ttl: {5000 * '9'}d}}\n", "ttl of 'a' is '9{39}; "),
        ("time: t\nlabel: 2024-13-45\n", "'2024-13-45' in line 2 is no timestamp"),
        (LIST + "categorical:\n- {name: a, admit: !!int x}\n", "'x' in line 4 is no int"),
        (LIST + "categorical:\n- {name: a, ttl: " + 5000 * "9" + "}\n", "'9+ in line 4 is no int"),
        ("label: !!timestamp y\n", "'y' in line 1 is no timestamp"),
        ("label: !!bool y\n", "'y' in line 1 is no bool"),
        ("label: !!map y\n", "not valid YAML .expected a mapping"),
    ],
)
def test_errors_name_the_file_and_the_line(features_file, text, complaint):
    with pytest.raises(InputError, match=complaint) as error:
        features_file(text)
    assert "f.yaml: " in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"f\.yaml: no such file"):
        load_features(tmp_path / "f.yaml")
