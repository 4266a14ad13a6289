/* hash.c - SHA-256 and HMAC by OpenSSL, CRC-32C by instruction or table, FNV-1a. */
#include "io/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "io/input.h"

struct vfm_sha256 {
	EVP_MD_CTX *ctx;
};

static void crypto_broken(void) __attribute__((noreturn));
static void crypto_broken(void)
{
	vfm_error("sha256 is not available from libcrypto, or there is no memory for it");
	_exit(-VFM_EENV);
}

static const EVP_MD *sha256_md; /* fetched once: OpenSSL 3 otherwise looks it up for each digest */

/* Otherwise the first digest reads openssl.cnf, which takes milliseconds and may load engines. */
static void init_crypto(void)
{
	OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
	sha256_md = EVP_MD_fetch(NULL, "SHA256", NULL);
	if (!sha256_md)
		crypto_broken();
}

static pthread_once_t crypto_once = PTHREAD_ONCE_INIT;

struct vfm_sha256 *vfm_sha256_new(void)
{
	struct vfm_sha256 *s = vfm_malloc(sizeof(*s));

	pthread_once(&crypto_once, init_crypto);
	s->ctx = EVP_MD_CTX_new();
	if (!s->ctx || EVP_DigestInit_ex(s->ctx, sha256_md, NULL) != 1)
		crypto_broken();
	return s;
}

void vfm_sha256_add(struct vfm_sha256 *s, const void *data, size_t len)
{
	if (len && EVP_DigestUpdate(s->ctx, data, len) != 1)
		crypto_broken();
}

static void write_hex(char *hex, const unsigned char *md, size_t n)
{
	static const char digit[] = "0123456789abcdef";

	for (size_t i = 0; i < n; i++) {
		hex[2 * i] = digit[md[i] >> 4];
		hex[2 * i + 1] = digit[md[i] & 15];
	}
	hex[2 * n] = 0;
}

void vfm_sha256_end(struct vfm_sha256 *s, char hex[VFM_SHA256_HEX])
{
	unsigned char md[VFM_SHA256_BYTES];

	if (EVP_DigestFinal_ex(s->ctx, md, NULL) != 1)
		crypto_broken();
	write_hex(hex, md, sizeof(md));
	EVP_MD_CTX_free(s->ctx);
	free(s);
}

void vfm_sha256_of(const void *data, size_t len, char hex[VFM_SHA256_HEX])
{
	struct vfm_sha256 *s = vfm_sha256_new();

	vfm_sha256_add(s, data, len);
	vfm_sha256_end(s, hex);
}

static const struct {
	const char *python, *openssl;
} digest_names[] = {{"blake2b", "BLAKE2b512"}, {"blake2s", "BLAKE2s256"}, {"sha3_224", "SHA3-224"},
	{"sha3_256", "SHA3-256"}, {"sha3_384", "SHA3-384"}, {"sha3_512", "SHA3-512"}};

bool vfm_digest_of(const char *algorithm, const void *data, size_t len, char hex[VFM_DIGEST_HEX])
{
	unsigned char md[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	EVP_MD *type;

	for (size_t i = 0; i < sizeof(digest_names) / sizeof(digest_names[0]); i++)
		if (strcmp(algorithm, digest_names[i].python) == 0)
			algorithm = digest_names[i].openssl;
	ERR_set_mark();
	type = EVP_MD_fetch(NULL, algorithm, NULL);
	ERR_pop_to_mark();
	if (!type || EVP_MD_get_flags(type) & EVP_MD_FLAG_XOF || EVP_MD_get_size(type) < 1) {
		EVP_MD_free(type);
		return false;
	}
	if (EVP_Digest(data, len, md, &n, type, NULL) != 1)
		crypto_broken();
	EVP_MD_free(type);
	write_hex(hex, md, n);
	return true;
}

void vfm_sha256_raw(const void *data, size_t len, unsigned char out[VFM_SHA256_BYTES])
{
	pthread_once(&crypto_once, init_crypto);
	if (EVP_Digest(data, len, out, NULL, sha256_md, NULL) != 1)
		crypto_broken();
}

/* Hashes `left` bytes from the position of fd on, which it closes; UINT64_MAX: all to the end. */
static int hash_open_file(int fd, uint64_t left, const char *name, const struct vfm_limit *limit,
	char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	enum { CHUNK = 1 << 18 };
	struct vfm_sha256 *s = vfm_sha256_new();
	char *buf = vfm_malloc(CHUNK);
	bool to_end = left == UINT64_MAX;
	ssize_t n = 1;
	int rc = 0;

	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	while (rc == 0 && n != 0 && left > 0) {
		n = read(fd, buf, left < CHUNK ? (size_t)left : CHUNK);
		if (n > 0) {
			vfm_sha256_add(s, buf, (size_t)n);
			left -= to_end ? 0 : (uint64_t)n;
		} else if (n < 0 && errno != EINTR) {
			rc = vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", name);
		}
		if (rc == 0 && limit)
			rc = vfm_limit_check(limit, name, err);
	}
	if (rc == 0 && left > 0 && !to_end)
		rc = vfm_fail(err, VFM_EINPUT, "'%s' was truncated while it was read", name);
	vfm_sha256_end(s, hex);
	free(buf);
	close(fd);
	return rc;
}

int vfm_sha256_file(const char *path, const struct vfm_limit *limit, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	int fd = vfm_open_regular(path, NULL, err);

	TRY(fd);
	return hash_open_file(fd, UINT64_MAX, path, limit, hex, err);
}

int vfm_sha256_input(const char *name, const struct vfm_limit *limit, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	struct vfm_input in;

	if (!vfm_member_parse(NULL, name))
		return vfm_sha256_file(name, limit, hex, err);
	TRY(vfm_input_open(&in, name, err));
	if (lseek(in.fd, (off_t)in.at, SEEK_SET) < 0) {
		vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", name);
		close(in.fd);
		return VFM_EINPUT;
	}
	return hash_open_file(in.fd, in.size, name, limit, hex, err);
}

void vfm_hmac_sha256(const void *key, size_t key_len, const void *data, size_t len, unsigned char out[VFM_HMAC_BYTES])
{
	unsigned n = 0;

	pthread_once(&crypto_once, init_crypto);
	if (!HMAC(EVP_sha256(), key, (int)key_len, data, len, out, &n) || n != VFM_HMAC_BYTES)
		crypto_broken();
}

bool vfm_equal_secrets(const void *a, const void *b, size_t len)
{
	return CRYPTO_memcmp(a, b, len) == 0;
}

uint64_t vfm_fnv64(const void *data, size_t len)
{
	const unsigned char *p = data;
	uint64_t h = 0xCBF29CE484222325u;

	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * 0x100000001B3u;
	return h;
}

/* ---- crc32c ------------------------------------------------------------------ */

static uint32_t crc_table[8][256];

static void crc_init(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;

		for (int k = 0; k < 8; k++)
			c = c & 1 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
		crc_table[0][i] = c;
	}
	for (int t = 1; t < 8; t++)
		for (int i = 0; i < 256; i++)
			crc_table[t][i] = crc_table[0][crc_table[t - 1][i] & 255] ^ (crc_table[t - 1][i] >> 8);
}

uint32_t vfm_crc32c_table(uint32_t crc, const void *data, size_t len)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const unsigned char *p = data;

	pthread_once(&once, crc_init);
	crc = ~crc;
	for (; len >= 8; len -= 8, p += 8) { /* eight bytes per iteration, a table for each */
		crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
		crc = crc_table[7][crc & 255] ^ crc_table[6][crc >> 8 & 255] ^ crc_table[5][crc >> 16 & 255] ^
			crc_table[4][crc >> 24] ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^
			crc_table[0][p[7]];
	}
	for (; len; len--, p++)
		crc = crc_table[0][(crc ^ *p) & 255] ^ (crc >> 8);
	return ~crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t crc_sse42(uint32_t crc, const unsigned char *p, size_t len)
{
	uint64_t c = (uint32_t)~crc, w;

	for (; len >= sizeof(w); len -= sizeof(w), p += sizeof(w)) {
		memcpy(&w, p, sizeof(w));
		c = _mm_crc32_u64(c, w);
	}
	for (; len; len--, p++)
		c = _mm_crc32_u8((uint32_t)c, *p);
	return ~(uint32_t)c;
}

uint32_t vfm_crc32c(uint32_t crc, const void *data, size_t len)
{
	return __builtin_cpu_supports("sse4.2") ? crc_sse42(crc, data, len) : vfm_crc32c_table(crc, data, len);
}
#else
uint32_t vfm_crc32c(uint32_t crc, const void *data, size_t len)
{
	return vfm_crc32c_table(crc, data, len);
}
#endif
