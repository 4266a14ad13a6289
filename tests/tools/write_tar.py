#!/usr/bin/env python3
"""Tars by Python's tarfile: write_tar.py FORMAT TAR NAME[=FILE] ...  FORMAT: ustar, pax or gnu.  A member without a file has its name as content."""
import io
import sys
import tarfile

formats = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}
with tarfile.open(sys.argv[2], "w", format=formats[sys.argv[1]]) as tar:
    for arg in sys.argv[3:]:
        name, _, path = arg.partition("=")
        data = open(path, "rb").read() if path else name.encode()
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
