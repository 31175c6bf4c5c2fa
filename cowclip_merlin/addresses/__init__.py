"""Files and folders at addresses such as s3://bucket/day.csv: the one home of fsspec."""

from __future__ import annotations

from cowclip_merlin.addresses.address import (
    Address,
    FilePath,
    beside,
    expand,
    is_address,
    natural_order,
    path_of,
    size_of,
)
from cowclip_merlin.addresses.copies import (
    listed_files,
    local_folder,
    origin,
    passing_copy,
)
from cowclip_merlin.addresses.uploads import (
    check_free,
    output_folder,
    remove_folder,
    upload_file,
    upload_folder,
    uploaded_file,
    uploaded_folder,
)

__all__ = [
    "Address",
    "FilePath",
    "beside",
    "check_free",
    "expand",
    "is_address",
    "listed_files",
    "local_folder",
    "natural_order",
    "origin",
    "output_folder",
    "passing_copy",
    "path_of",
    "remove_folder",
    "size_of",
    "upload_file",
    "upload_folder",
    "uploaded_file",
    "uploaded_folder",
]
