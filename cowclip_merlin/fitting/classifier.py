"""`CTRClassifier`: an estimator with the protocol of scikit-learn, which it does not import.

A fitted one has a run folder, by default a temporary one that goes away with it.
"""

from __future__ import annotations

import inspect
import shutil
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cowclip_merlin.addresses import FilePath, is_address
from cowclip_merlin.checks import near, one_of
from cowclip_merlin.choices import MODELS
from cowclip_merlin.errors import InputError
from cowclip_merlin.fitting.fit import fit_run
from cowclip_merlin.fitting.labeled import Labeled, table_of
from cowclip_merlin.metrics import roc_auc
from cowclip_merlin.recipe import MOST_EPOCHS, PATIENCE, choose
from cowclip_merlin.system.files import read_json, write_json
from cowclip_merlin.targets import only_clicks
from cowclip_merlin.train import train
from cowclip_merlin.training.run_config import CONFIG, RunConfig, local_run
from cowclip_merlin.training.run_settings import OVERRIDES, RunSettings
from cowclip_merlin.training.scoring.scorer import Scorer
from cowclip_merlin.types import Array
from cowclip_merlin.workflows.guess import IGNORE, ROLES
from cowclip_merlin.workflows.guessed import guessed_log, naming_frame, new_run_folder
from cowclip_merlin.workflows.prepared.folder import DATA
from cowclip_merlin.workflows.raw.frames import Frame, is_frame

ABOUT = "classifier.json"
"""File of a saved estimator: its parameters, its classes, and what it knows of its rows."""
_NOT_SAVED = (".cache-*", "events", ".lock")
_OF_RUN = ("model", "epochs", "batch_size", "mlp", "embedding_dim")

Rows: TypeAlias = "Frame | Array | str | FilePath | Sequence[str | FilePath]"


class CTRClassifier:
    """A CTR model as a classifier of two classes.

    `fit` guesses the roles of the columns, holds out some rows, and keeps the epoch with the best
    AUC on them. Rows are a pandas or polars frame, an Arrow table, a list of dictionaries, a NumPy
    matrix, or raw files. Ids that training has not seen are scored as such.

    Args:
        model: "wide_and_deep", "deepfm", "dcn", "dcnv2" or "din".
        categorical: columns of ids, whatever they look like.
        multi: columns of several ids per row.
        continuous: columns of numbers.
        vector: columns of vectors of numbers.
        time: column of dates or times, whose hour and weekday become ids; None: guessed.
        ignore: columns to leave out.
        epochs: passes over the training rows, at most; None: 10.
        batch_size: rows per step; None: by the number of rows.
        mlp: widths of the hidden layers; None: 200 and 200.
        embedding_dim: numbers of each id; None: those of `RunSettings`.
        validation_fraction: share of the rows that `fit` holds out, above 0 and below 1.
        settings: further arguments of `RunSettings`; None: none.
        device: "auto", "cpu" or "gpu".
        random_state: seed, or a `RandomState` that gives one; None: another one each time.
        verbose: whether to print what training prints.

    Attributes:
        classes_: the two labels, sorted; `predict_proba` has a column for each.
        n_features_in_: number of columns of the rows.
        feature_names_in_: their names, if they have names.
        report_: what `cc.fit` found; None otherwise.

    >>> CTRClassifier("dcn", epochs=2)
    CTRClassifier(model='dcn', epochs=2)
    """

    def __init__(
        self,
        model: str = "deepfm",
        *,
        categorical: Sequence[str] = (),
        multi: Sequence[str] = (),
        continuous: Sequence[str] = (),
        vector: Sequence[str] = (),
        time: str | None = None,
        ignore: Sequence[str] = (),
        epochs: int | None = None,
        batch_size: int | None = None,
        mlp: Sequence[int] | None = None,
        embedding_dim: int | None = None,
        validation_fraction: float = 0.1,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.categorical, self.multi, self.continuous = categorical, multi, continuous
        self.vector, self.time, self.ignore = vector, time, ignore
        self.epochs, self.batch_size, self.mlp = epochs, batch_size, mlp
        self.embedding_dim, self.validation_fraction = embedding_dim, validation_fraction
        self.settings, self.device, self.random_state = settings, device, random_state
        self.verbose = verbose

    def fit(
        self, X: Rows, y: npt.ArrayLike | str, sample_weight: npt.ArrayLike | None = None
    ) -> CTRClassifier:
        """Train on rows and their labels; the same seed gives the same model.

        Args:
            X: the rows.
            y: labels of two classes, [n], or the name of the column of `X` that has them.
            sample_weight: weights of the rows, numbers of 0 or more, [n].

        Raises:
            InputError: if an input is wrong; it is a ValueError.
        """
        if not 0 < self.validation_fraction < 1:
            raise InputError(
                f"`validation_fraction` is {self.validation_fraction}; it must be above 0 and "
                "below 1"
            )
        folder, seed = Path(mkdtemp(prefix="cowclip-")), self._seed()
        remove = weakref.finalize(self, shutil.rmtree, folder, True)
        try:
            found = self._fit(X, y, sample_weight, folder, seed)
        except BaseException:
            remove()
            raise
        self._keep(folder / "run", remove, **found)
        return self

    def predict_proba(self, X: Rows) -> npt.NDArray[np.float64]:
        """Return the probabilities of both classes for each row, [n, 2].

        Raises:
            InputError: if a column is missing, or a row is damaged.
        """
        self._check_fitted()
        scorer = self._scorer()
        scores = scorer.score(self._rows(X), allow_unknown=scorer.data.categorical)
        return np.column_stack([1 - scores, scores])

    def predict(self, X: Rows) -> Array:
        """Return the class of each row whose probability is above a half, [n]."""
        clicks = self.predict_proba(X)[:, 1] > 0.5
        return self.classes_[clicks.astype(int)]

    def score(self, X: Rows, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return the AUC of labeled rows: of rare clicks, the accuracy would say nothing."""
        labels = np.asarray(y).ravel() == self.classes_[1]
        return roc_auc(labels, self.predict_proba(X)[:, 1], sample_weight=sample_weight)

    def save(self, out: str | Path) -> None:
        """Write a run folder that `cc.load` reads, and every command that takes a run.

        Raises:
            InputError: if the path is taken.
        """
        self._check_fitted()
        with new_run_folder(out) as folder:
            ignored = shutil.ignore_patterns(*_NOT_SAVED)
            shutil.copytree(self._run, folder, dirs_exist_ok=True, ignore=ignored)
            config = read_json(folder / CONFIG)
            config["data_path"] = str((folder / DATA).absolute())
            write_json(folder / CONFIG, config)
            write_json(folder / ABOUT, self._about())

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of `CTRClassifier`, as it has them."""
        return {name: getattr(self, name) for name in _parameters()}

    def set_params(self, **params: Any) -> CTRClassifier:
        """Set arguments of `CTRClassifier`, which the next `fit` uses.

        Raises:
            InputError: if there is no such argument.
        """
        for name, value in params.items():
            if name not in _parameters():
                known = ", ".join(_parameters())
                raise InputError(f"Invalid parameter {name!r} for CTRClassifier; it has {known}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """Return the call that makes it, without the usual arguments."""
        given = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value is not (usual := _parameters()[name].default) and value != usual
        ]
        return f"CTRClassifier({', '.join(given)})"

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether it is fitted."""
        return hasattr(self, "classes_")

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what it is and takes."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False),
            input_tags=InputTags(allow_nan=True, string=True, categorical=True),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters, and the files of the run as bytes."""
        state = {k: v for k, v in vars(self).items() if k not in ("_remove", "_run", "_loaded")}
        if self.__sklearn_is_fitted__():
            state["_files"] = {
                file.relative_to(self._run).as_posix(): file.read_bytes()
                for file in self._run.rglob("*")
                if file.is_file() and not _is_of_training(file.relative_to(self._run))
            }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Write the files of the run to a temporary folder."""
        files = state.pop("_files", None)
        vars(self).update(state)
        if files is None:
            return
        folder = Path(mkdtemp(prefix="cowclip-"))
        self._remove = weakref.finalize(self, shutil.rmtree, folder, True)
        self._run, self._loaded = folder, {}
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    def _fit(
        self,
        X: Rows,
        y: npt.ArrayLike | str,
        sample_weight: npt.ArrayLike | None,
        folder: Path,
        seed: int,
    ) -> dict[str, Any]:
        """Train in `folder`/run; return the other arguments of `_keep`."""
        roles, run = self._roles(), self._settings(seed)
        run = {"epochs": MOST_EPOCHS, "early_stopping": PATIENCE} | run
        prepared: dict[str, Any] = {"split": "random", "test_fraction": 0.0, "max_bad_fraction": 0}
        if isinstance(y, str) and not (is_frame(X) or isinstance(X, np.ndarray)):
            if sample_weight is not None:
                raise InputError("`sample_weight` is for rows in memory; give `X` as such")
            files, label, known = X, y, {"classes": np.array([0, 1]), "names": None}
            run = {"validation_fraction": self.validation_fraction} | run
        elif isinstance(X, str | Path) or is_address(X):
            raise InputError(f"{X}: is a file; give `y` the name of its column with the labels")
        else:
            rows = Labeled.of(X, y, sample_weight)
            with naming_frame(folder):
                files, held_out, roles = rows.write(folder, self.validation_fraction, seed, roles)
            label, known = rows.label, {"classes": rows.classes, "names": rows.names}
            known |= {"features": rows.features}
            prepared["validation"] = (held_out,)
        with (
            naming_frame(folder),
            self._quiet(),
            guessed_log(files, label, given=roles, **prepared) as log,
        ):
            print(log.guess.table())
            with new_run_folder(folder / "run") as out:
                data = log.prepare(out / DATA)
                chosen, words = choose(data, run)
                print(words)
                train(data.path, chosen, out=out, device=self.device)
        return known

    def _roles(self) -> dict[str, Sequence[str]]:
        names = [name for name in (*ROLES, IGNORE) if name not in ("time", "weight")]
        for name in names:
            if isinstance(value := getattr(self, name), str):
                raise InputError(f"`{name}` is {value!r}; give a list of columns, as [{value!r}]")
        if not isinstance(self.time, str | None):
            raise InputError(f"`time` is {self.time!r}; give the name of one column")
        given = {name: tuple(getattr(self, name)) for name in names}
        return given | {"time": () if self.time is None else (self.time,)}

    def _settings(self, seed: int) -> dict[str, Any]:
        """Return the arguments of `RunSettings` that are given."""
        given = {name: value for name in _OF_RUN if (value := getattr(self, name)) is not None}
        if "mlp" in given:
            if np.ndim(self.mlp) != 1:
                raise InputError(
                    f"`mlp` is {self.mlp!r}; give the widths of its layers, as (64, 64)"
                )
            given["mlp"] = tuple(given["mlp"])
        one_of("model", self.model, MODELS)
        known = [each.name for each in fields(RunSettings)]
        for name in self.settings or {}:
            if name not in known:
                hint = near(name, known)
                if name in OVERRIDES:
                    hint = f"; give it as {{'overrides': {{{name!r}: {self.settings[name]!r}}}}}"
                raise InputError(f"`settings`: RunSettings has no {name!r}{hint}")
        return given | {"seed": seed} | dict(self.settings or {})

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        random = np.random if self.random_state is None else self.random_state
        return int(random.randint(2**31 - 1))

    def _quiet(self) -> Any:
        return nullcontext() if self.verbose else redirect_stdout(StringIO())

    def _keep(
        self,
        run: Path,
        remove: weakref.finalize | None,
        *,
        classes: Array,
        names: Sequence[str] | None,
        features: int | None = None,
        report: Any = None,
    ) -> None:
        """Have a run folder from now on, which `remove` deletes with this estimator."""
        if (before := getattr(self, "_remove", None)) is not None:
            before()
        self._run, self._remove, self._loaded = run, remove, {}
        self.classes_, self.report_ = classes, report
        for name, value in (("n_features_in_", features), ("feature_names_in_", names)):
            vars(self).pop(name, None)
            if value is not None:
                setattr(self, name, np.array(value, object) if value is names else value)

    def _check_fitted(self) -> None:
        if self.__sklearn_is_fitted__():
            return
        if sys.modules.get("sklearn"):
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self)
        raise InputError("this CTRClassifier is not fitted yet; call `fit` first")

    def _scorer(self) -> Scorer:
        """Return what scores rows, which is loaded once."""
        if "scorer" not in self._loaded:
            data = self._run / DATA
            data = data if data.is_dir() else None
            self._loaded["scorer"] = Scorer(self._run, data, device=self.device)
        return self._loaded["scorer"]

    def _rows(self, X: Rows) -> Any:
        """Return rows as `Scorer.score` takes them.

        Raises:
            InputError: if a matrix has another number of columns than in `fit`.
        """
        if not (is_frame(X) or hasattr(X, "__array__") or _is_list_of_rows(X)):
            return X
        table, names = table_of(X)
        features = getattr(self, "n_features_in_", table.num_columns)
        if names is None and table.num_columns != features:
            raise InputError(
                f"X has {table.num_columns} features, but CTRClassifier is expecting {features} "
                "features as input"
            )
        return Labeled.with_ids(table, self._scorer().data.categorical)

    def _about(self) -> dict[str, Any]:
        """Return what `ABOUT` has."""
        params = self.get_params()
        if not isinstance(self.random_state, int | np.integer):
            params["random_state"] = None
        names = getattr(self, "feature_names_in_", None)
        return {
            "params": params,
            "classes": self.classes_.tolist(),
            "names": None if names is None else names.tolist(),
            "features": getattr(self, "n_features_in_", None),
        }


def _parameters() -> Mapping[str, inspect.Parameter]:
    return dict([*inspect.signature(CTRClassifier.__init__).parameters.items()][1:])


_OF_TRAINING = {"train", "validation", "test", "events", "figures"}


def _is_of_training(file: Path) -> bool:
    """Return whether only training needs a file of a run folder, as the rows and their cache."""
    folders = file.parts[:-1]
    return any(part in _OF_TRAINING or part.startswith(".cache-") for part in folders)


def _is_list_of_rows(rows: Any) -> bool:
    return isinstance(rows, list | tuple) and not all(isinstance(x, str | Path) for x in rows)


def fit(
    rows: Frame | str | FilePath | Sequence[str | FilePath],
    label: str,
    *,
    out: str | Path | None = None,
    weight: str | None = None,
    prepared: Mapping[str, Any] | None = None,
    verbose: bool = True,
    **params: Any,
) -> CTRClassifier:
    """Guess the columns of a log, prepare it, train, evaluate, and compare with simple predictions.

    It does what `cowclip fit` does: a tenth of the rows are test rows, the last ones if a column
    has times. `report_` of the result has their metrics, and the columns that matter.

    Args:
        rows: a pandas or polars frame, an Arrow table, a list of dictionaries, or raw files.
        label: name of the column with labels of 0 and 1.
        out: the run folder to write; None: a temporary one, which goes away with the result.
        weight: name of the column with the weights of the rows.
        prepared: further arguments of `PrepareSettings`, such as `test_fraction`.
        verbose: whether to print what `cowclip fit` prints.
        params: as of `CTRClassifier`, but `validation_fraction`.

    Raises:
        InputError: if an input is wrong.

    >>> draw = np.random.default_rng(0)
    >>> log = [{"user": f"u{i % 9}", "click": int(draw.random() < i % 9 / 9)} for i in range(400)]
    >>> fitted = fit(log, "click", epochs=2, mlp=(4,), random_state=1, verbose=False)
    >>> fitted.report_.test.auc > 0.6, fitted.predict_proba([{"user": "u1"}]).shape
    (True, (1, 2))
    """
    if "validation_fraction" in params:
        raise InputError("`validation_fraction` is for CTRClassifier; give it in `settings`")
    found = CTRClassifier(**params, verbose=verbose)
    roles = found._roles() | {"weight": (weight,) if weight else ()}
    folder = Path(mkdtemp(prefix="cowclip-")) if out is None else None
    remove = None if folder is None else weakref.finalize(found, shutil.rmtree, folder, True)
    run = Path(out) if folder is None else folder / "run"
    with found._quiet():
        report = fit_run(
            rows,
            label,
            out=run,
            roles=roles,
            prepared=prepared,
            settings=found._settings(found._seed()),
            device=found.device,
        )
    found._keep(run, remove, classes=np.array([0, 1]), names=None, report=report)
    return found


def load(run: str | FilePath) -> CTRClassifier:
    """Return a run as an estimator: of `save`, of `cc.fit`, or of `cowclip train`.

    Args:
        run: the run folder.

    Raises:
        InputError: if it is no run, or one with other targets than one label of 0 and 1.
    """
    folder = local_run(run)
    config = RunConfig.load(folder)
    settings = config.settings
    if (folder / ABOUT).exists():
        about = read_json(folder / ABOUT)
    else:
        params = {name: getattr(settings, name) for name in _OF_RUN}
        about = {"params": params | {"random_state": settings.seed}, "classes": [0, 1]}
    params = about["params"].items()
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in params}
    found = CTRClassifier(**given)
    known = {name: about.get(name) for name in ("names", "features")}
    found._keep(folder, None, classes=np.array(about["classes"]), **known)
    if not only_clicks(found._scorer().data.targets):
        raise InputError(f"{run}: has other targets than one label of 0 and 1; use `cc.score`")
    return found
