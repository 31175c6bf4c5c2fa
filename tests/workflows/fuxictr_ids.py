"""Let FuxiCTR preprocess a data set of BARS; write its ids and vocabularies as JSON.

Usage, in an environment with FuxiCTR 2.3 and polars 1: python fuxictr_ids.py KIND FOLDER OUT.json

Compared on 2026-11-30 (FuxiCTR 2.3.10, polars 1.31.0, Python 3.11): vocabularies and ids of all
columns, on 400 + 100 + 100 rows of each of the four data sets, are equal one to one. Missing and
rare values, and a 0 of Criteo_x4's numbers, have one id there; here each has its own. FuxiCTR's
buckets of 4,000,010 numbers, -10 to 2,999,999 and random ones below 2^31, equal ours.
"""

import json
import sys
import tempfile
from pathlib import Path

import pandas as pd
from fuxictr.datasets.avazu import CustomizedFeatureProcessor as Avazu
from fuxictr.datasets.criteo import CustomizedFeatureProcessor as Criteo
from fuxictr.preprocess import FeatureProcessor, build_dataset

NUMBERS, IDS = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
AVAZU = "C1 banner_pos site_id site_domain site_category app_id app_domain app_category device_id "
AVAZU += "device_ip device_model device_type device_conn_type C14 C15 C16 C17 C18 C19 C20 C21"


def column(name, dtype, kind="categorical", **more):
    return {"name": name, "active": True, "dtype": dtype, "type": kind, **more}


# The feature_cols of dataset_config.yaml in reczoo/BARS, folders DeepFM_KIND of ranking/ctr/DeepFM.
CONFIGS = {
    "criteo_x1": (
        FeatureProcessor, "label", 1,
        [column(NUMBERS, "float", "numeric"), column(IDS, "float")],
    ),
    "criteo_x4": (
        Criteo, "Label", 10,
        [column(NUMBERS, "float", preprocess="convert_to_bucket", fill_na=0),
         column(IDS, "str", fill_na="")],
    ),
    "avazu_x1": (
        FeatureProcessor, "label", 1, [column([f"feat_{i}" for i in range(1, 23)], "float")]
    ),
    "avazu_x4": (
        Avazu, "click", 2,
        [column("id", "str", active=False), column("hour", "str", preprocess="convert_hour"),
         column(AVAZU.split(), "str"), column("weekday", "str", preprocess="convert_weekday"),
         column("weekend", "str", preprocess="convert_weekend")],
    ),
}  # fmt: skip

if __name__ == "__main__":
    kind, folder, out = sys.argv[1:]
    make, label, least, columns = CONFIGS[kind]
    files = {f"{x}_data": f"{folder}/{x}.csv" for x in ("train", "valid", "test")}
    with tempfile.TemporaryDirectory() as work:
        made = make(columns, {"name": label, "dtype": "float"}, "ids", work)
        build_dataset(made, **files, min_categr_count=least, data_format="csv")
        parts = {
            x: pd.read_parquet(Path(work, "ids", f"{x}.parquet"))
            for x in ("train", "valid", "test")
        }
        tokens = {
            name.removesuffix("::tokenizer"): {str(k): int(v) for k, v in each.vocab.items()}
            for name, each in made.processor_dict.items()
        }
        rows = {x: {c: part[c].tolist() for c in part} for x, part in parts.items()}
    Path(out).write_text(json.dumps({"rows": rows, "vocabularies": tokens}), encoding="utf-8")
