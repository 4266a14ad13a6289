"""The checksums of index.vfmi (vfm-index(5)), for tests that edit an index."""

import hashlib
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


def with_tree(b):
    """Return an index whose hash tree and header are those of header, records, tables and meta in b."""
    meta, size = struct.unpack_from("<QI", b, 80)
    level = bytes(b[:meta + size])
    level += bytes(-len(level) % 4096)
    at, blocks = len(level), len(level) // 4096
    end = at
    while end == at or blocks > 1:
        blocks = (blocks + 127) // 128
        end += blocks * 4096
    head = bytearray(level[:128])
    struct.pack_into("<Q", head, 96, at)
    struct.pack_into("<Q", head, 56, end)
    out = level = seal(head) + level[128:]
    while len(out) < end:
        level = b"".join(hashlib.sha256(level[i:i + 4096]).digest() for i in range(0, len(level), 4096))
        level += bytes(-len(level) % 4096)
        out += level
    return out
