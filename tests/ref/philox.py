"""Philox4x32-10 streams in numpy, written from the paper (Salmon et al., SC11) and from the contract
in lib/base/philox.h: an independent check of the C implementation, vectorised over the blocks."""
import numpy as np

INIT, NOISE, TIME, DROP, SAMPLE, DATA, TEXT, VAE, TEST = 1, 2, 3, 4, 5, 6, 7, 14, 15
_M64 = (1 << 64) - 1


def _splitmix(x):
    x = (x + 0x9E3779B97F4A7C15) & _M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _M64
    return x ^ (x >> 31)


def fnv64(name):
    """FNV-1a, 64 bits, of a string: the id of a parameter's stream."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & _M64
    return h


def words(seed, step, ident, purpose, blocks):
    """The 32-bit words of blocks 0..blocks-1 of a stream: uint64 [blocks, 4] (upper halves zero)."""
    key = _splitmix(_splitmix(_splitmix(seed & _M64) ^ (step & _M64)) ^ purpose)
    return rounds(key & 0xFFFFFFFF, key >> 32, np.arange(blocks, dtype=np.uint64), ident & _M64)


def rounds(k0, k1, low, high):
    """Ten rounds on counters (low 64 bits: an array; high 64 bits: a number)."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [low & mask, low >> shift, np.full_like(low, high & 0xFFFFFFFF), np.full_like(low, high >> 32)]
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> shift) ^ c[1] ^ np.uint64(k0), q & mask, (p >> shift) ^ c[3] ^ np.uint64(k1), p & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, 1)


def normal(seed, step, ident, purpose, n):
    """The first n normals of a stream, float32 [n]: Box-Muller on words (0,1) and (2,3) of each block."""
    u = (words(seed, step, ident, purpose, (n + 3) // 4).astype(np.float64) + 0.5) * 2.0**-32
    radius, angle = np.sqrt(-2.0 * np.log(u[:, 0::2])), 2.0 * np.pi * u[:, 1::2]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
    return pairs.reshape(-1)[:n].astype(np.float32)


def self_test():
    """The known answers that accompany the Random123 library (kat_vectors, philox4x32 10)."""
    ones = np.array([_M64], dtype=np.uint64)
    zero = np.array([0], dtype=np.uint64)
    assert [hex(x) for x in rounds(0, 0, zero, 0)[0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    assert [hex(x) for x in rounds(0xFFFFFFFF, 0xFFFFFFFF, ones, _M64)[0]] == [
        "0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]
