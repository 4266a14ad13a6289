"""The checksums of index.vfmi (vfm-index(5)), for tests that edit an index."""

import struct


def crc32c(b):
    c = 0xffffffff
    for x in b:
        c ^= x
        for _ in range(8):
            c = c >> 1 ^ (0x82f63b78 if c & 1 else 0)
    return c ^ 0xffffffff


def seal(b):
    """Return the bytes of an entry, the last four of which become the checksum of the others."""
    return bytes(b[:-4]) + struct.pack("<I", crc32c(bytes(b[:-4])))
