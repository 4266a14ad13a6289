#!/usr/bin/env python3
"""The samples of tars by WebDataset's rules, with tarfile: tar_samples.py TAR ...: a line "KEY SUFFIX SHA256" a member.

With the package webdataset (--webdataset), that one reads the tars instead."""
import hashlib
import re
import sys
import tarfile


def by_tarfile(path):
    with tarfile.open(path) as tar:
        for info in tar:
            m = re.match(r"^((?:.*/|)[^./][^./]*)[.]([^/]*)$", info.name)
            if info.isreg() and m and not re.match(r"__[^/]*__($|/)", info.name):
                yield m.group(1), m.group(2).lower(), tar.extractfile(info).read()


def by_webdataset(path):
    import webdataset

    for sample in webdataset.WebDataset(path, shardshuffle=False):
        for suffix, data in sample.items():
            if not suffix.startswith("__"):
                yield sample["__key__"], suffix, data


read = by_tarfile
if sys.argv[1] == "--webdataset":
    read = by_webdataset
    del sys.argv[1]
for path in sys.argv[1:]:
    for key, suffix, data in read(path):
        print(key, suffix, hashlib.sha256(data).hexdigest())
