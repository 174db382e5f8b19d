"""Paths as people give them: folders that this machine sees, by name or as a `file:` URL."""

from __future__ import annotations

import re
from pathlib import Path

from millrace.core.errors import ParameterError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//?)(.*)", re.DOTALL)
# Behind one slash only these are schemes: `pathlib` makes one slash of two, and a folder may be called `notes:`.
_SCHEMES = frozenset(
    ("abfs", "abfss", "adl", "alluxio", "cos", "cosn", "dbfs", "file", "ftp", "gs", "har", "hdfs", "http", "https", "jfs",
     "maprfs", "o3fs", "obs", "ofs", "oss", "s3", "s3a", "s3n", "sftp", "swebhdfs", "swift", "viewfs",
     "wasb", "wasbs", "webhdfs")
)  # fmt: skip


def local_path(given: str | Path) -> Path:
    """The path of a folder or file; object stores and remote file systems are refused before anything is written.

    >>> local_path("file:///data/lake")
    PosixPath('/data/lake')
    """
    text = str(given)
    url = _URL.fullmatch(text)
    if url is None or not (url[2] == "//" or url[1].lower() in _SCHEMES):
        return Path(text)
    scheme, slashes, rest = url[1].lower(), url[2], url[3]
    if scheme != "file":
        raise ParameterError(
            f"{text} is in a {scheme}: file system, and tables lie in folders that driver and executors see under one path; "
            "mount that file system (NFS, FUSE) or copy the files to such a folder, and give the path of the folder"
        )
    if slashes == "/":
        return Path("/" + rest)
    host, slash, path = rest.partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise ParameterError(f"{text} names a host, {host!r}: write file:///folder, with three slashes, or the plain path")
    return Path("/" + path)
