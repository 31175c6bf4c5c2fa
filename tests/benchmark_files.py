"""Small files of the form of BARS' data sets, with known edge cases."""

import numpy as np
import pandas as pd

NUMBERS, IDS = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
HASHED = ["site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"]
HASHED += ["device_id", "device_ip", "device_model"]
AVAZU = ["C1", "banner_pos", *HASHED, "device_type", "device_conn_type"]
AVAZU += [f"C{i}" for i in range(14, 22)]
LABELS = {"criteo_x1": "label", "criteo_x4": "Label", "avazu_x1": "label", "avazu_x4": "click"}
FILES = {"train": "train", "validation": "valid", "test": "test"}


def hashed(values):
    return [f"{each * 2654435761 % 2**32:08x}" for each in values]


def columns_of(kind, rows, draw):
    """The columns of a file, in its order; text, as the file has it, "" where one is missing."""

    def often(p):
        return draw.geometric(p, rows)

    found = {"id": draw.integers(1 << 60, size=rows)} if kind == "avazu_x4" else {}
    found[LABELS[kind]] = draw.integers(0, 2, rows)
    if kind == "criteo_x1":
        found |= {name: draw.random(rows).round(4) for name in NUMBERS}
        found |= {name: often(0.1) for name in IDS}
    elif kind == "avazu_x1":
        found |= {f"feat_{i}": often(0.05) for i in range(1, 23)}
    elif kind == "avazu_x4":
        hours = zip(draw.integers(21, 31, rows), draw.integers(0, 24, rows))
        found["hour"] = [f"1410{day:02}{hour:02}" for day, hour in hours]
        found |= {name: hashed(often(0.05)) if name in HASHED else often(0.05) for name in AVAZU}
    else:
        for name in NUMBERS:
            x = np.floor(draw.lognormal(2, 2, rows)).astype(int) - 2 * (name == "I2")
            found[name] = np.where(draw.random(rows) < 0.2, "", x.astype(str))
        for name in IDS:
            found[name] = np.where(draw.random(rows) < 0.1, "", hashed(often(0.1)))
    return {name: [str(each) for each in column] for name, column in found.items()}


def write(kind, folder, rows=(400, 100, 100)):
    """Write train.csv, valid.csv and test.csv; return split -> rows, as text."""
    draw, found = np.random.default_rng(5), {}
    folder.mkdir(parents=True)
    for (split, file), count in zip(FILES.items(), rows, strict=True):
        found[split] = pd.DataFrame(columns_of(kind, count, draw))
        found[split].to_csv(folder / f"{file}.csv", index=False)
    return found
