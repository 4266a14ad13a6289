/* hash.h - SHA-256 and HMAC-SHA256 (OpenSSL), CRC-32C (Castagnoli, in hardware if available), FNV-1a of 64 bits.  A
 * hexadecimal digest has 64 lower-case digits and a NUL.
 */
#ifndef VFM_IO_HASH_H
#define VFM_IO_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define VFM_SHA256_HEX 65

struct vfm_sha256; /* an incremental digest */
struct vfm_sha256 *vfm_sha256_new(void);
void vfm_sha256_add(struct vfm_sha256 *s, const void *data, size_t len);
void vfm_sha256_end(struct vfm_sha256 *s, char hex[VFM_SHA256_HEX]); /* frees s */
void vfm_sha256_of(const void *data, size_t len, char hex[VFM_SHA256_HEX]);
enum { VFM_SHA256_BYTES = 32 };
/* Writes the digest itself; fast for short data. */
void vfm_sha256_raw(const void *data, size_t len, unsigned char out[VFM_SHA256_BYTES]);
/* Hashes a regular file.  VFM_EINPUT: the file cannot be read, or the limit (base/clock.h; NULL: none) is over. */
struct vfm_limit;
int vfm_sha256_file(const char *path, const struct vfm_limit *limit, char hex[VFM_SHA256_HEX], struct vfm_err *err);
/* Hashes an input (input.h): a file, or the content of a tar's member. */
int vfm_sha256_input(const char *name, const struct vfm_limit *limit, char hex[VFM_SHA256_HEX], struct vfm_err *err);

/* Computes a digest of fixed length by any algorithm of OpenSSL under its name in Python, such as "md5" or "sha3_256".
 * Returns false if there is no such algorithm. */
enum { VFM_DIGEST_HEX = 129 };
bool vfm_digest_of(const char *algorithm, const void *data, size_t len, char hex[VFM_DIGEST_HEX]);

enum { VFM_HMAC_BYTES = 32 };
/* Computes HMAC-SHA256 (RFC 2104) of data [len] with the key [key_len]. */
void vfm_hmac_sha256(const void *key, size_t key_len, const void *data, size_t len, unsigned char out[VFM_HMAC_BYTES]);
/* Compares secrets in constant time. */
bool vfm_equal_secrets(const void *a, const void *b, size_t len);

uint32_t vfm_crc32c(uint32_t crc, const void *data, size_t len); /* crc: 0, or the result of the preceding bytes */
uint32_t vfm_crc32c_table(uint32_t crc, const void *data, size_t len); /* without hardware instructions */
uint64_t vfm_fnv64(const void *data, size_t len);

#endif
