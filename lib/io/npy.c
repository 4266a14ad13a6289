/* npy.c - parses and writes the header of .npy files, and checks arrays for NaN. */
#include "io/npy.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/finite.h"
#include "base/le.h"
#include "base/mem.h"
#include "io/file.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the formats of arrays are mapped as they are");

static const struct {
	const char *descr, *name;
	size_t size;
} types[] = {
	[VFM_NPY_F16] = {"<f2", "float16", 2},
	[VFM_NPY_F32] = {"<f4", "float32", 4},
	[VFM_NPY_F64] = {"<f8", "float64", 8},
	[VFM_NPY_U8] = {"|u1", "uint8", 1},
	[VFM_NPY_I32] = {"<i4", "int32", 4},
	[VFM_NPY_I64] = {"<i8", "int64", 8},
	[VFM_NPY_BF16] = {"<V2", "bfloat16", 2},
};
#define N_TYPES ((int)(sizeof(types) / sizeof(types[0])))

size_t vfm_npy_type_size(enum vfm_npy_type t)
{
	return (int)t > 0 && (int)t < N_TYPES ? types[t].size : 0;
}

const char *vfm_npy_type_name(enum vfm_npy_type t)
{
	return types[t].name;
}

uint64_t vfm_npy_count(const struct vfm_npy *n)
{
	uint64_t c = 1;

	for (int i = 0; i < n->ndim; i++)
		c *= (uint64_t)n->shape[i];
	return c;
}

/* ---- the header: a Python dictionary literal of three known keys ---- */

struct scan {
	const char *p, *end;
};

static void skip_space(struct scan *s)
{
	while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n'))
		s->p++;
}

static bool accept_char(struct scan *s, char c)
{
	skip_space(s);
	if (s->p >= s->end || *s->p != c)
		return false;
	s->p++;
	return true;
}

/* A quoted string without escapes, of fewer than cap bytes. */
static bool take_string(struct scan *s, char *out, size_t cap)
{
	size_t n = 0;
	char quote;

	skip_space(s);
	if (s->p >= s->end || (*s->p != '\'' && *s->p != '"'))
		return false;
	quote = *s->p++;
	while (s->p < s->end && *s->p != quote) {
		if (*s->p == '\\' || (unsigned char)*s->p < ' ' || n + 1 >= cap)
			return false;
		out[n++] = *s->p++;
	}
	out[n] = 0;
	return accept_char(s, quote);
}

static bool take_word(struct scan *s, const char *word)
{
	size_t n = strlen(word);

	skip_space(s);
	if ((size_t)(s->end - s->p) < n || memcmp(s->p, word, n) != 0)
		return false;
	s->p += n;
	return true;
}

static bool take_int(struct scan *s, int64_t *out)
{
	int64_t v = 0;
	int digits = 0;

	skip_space(s);
	for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++, digits++) {
		if (v > (INT64_MAX - 9) / 10)
			return false;
		v = v * 10 + (*s->p - '0');
	}
	*out = v;
	return digits > 0;
}

static const char *take_shape(struct scan *s, struct vfm_npy *n)
{
	bool comma = true;

	if (!accept_char(s, '('))
		return "shape is not a tuple";
	for (n->ndim = 0; !accept_char(s, ')'); n->ndim++) {
		if (n->ndim == VFM_NPY_DIMS)
			return "too many dimensions";
		if (!comma || !take_int(s, &n->shape[n->ndim]))
			return "a bad dimension";
		comma = accept_char(s, ',');
	}
	if (n->ndim == 1 && !comma)
		return "shape is not a tuple";
	return NULL;
}

/* Bytes have no byte order, and NumPy writes opaque elements with "<" or "|". */
static bool is_descr_of(int t, const char *descr)
{
	if (!*descr || strcmp(descr + 1, types[t].descr + 1) != 0)
		return false;
	return *descr == *types[t].descr || types[t].size == 1 || (t == VFM_NPY_BF16 && *descr == '|');
}

static const char *take_descr(struct scan *s, struct vfm_npy *n, char *descr, size_t cap)
{
	if (!take_string(s, descr, cap))
		return "descr is not a plain type";
	for (int t = 1; t < N_TYPES; t++)
		if (is_descr_of(t, descr))
			n->type = (enum vfm_npy_type)t;
	if (n->type == VFM_NPY_NONE)
		return descr[0] == '>' ? "big-endian numbers are not supported" : "an unsupported element type";
	return NULL;
}

static const char *parse_dict(struct scan *s, struct vfm_npy *n)
{
	char key[16], descr[16] = "";
	unsigned seen = 0, bit;
	const char *why = NULL;
	bool comma = true;

	if (!accept_char(s, '{'))
		return "the header is not a dictionary";
	while (!accept_char(s, '}')) {
		if (!comma || !take_string(s, key, sizeof(key)) || !accept_char(s, ':'))
			return "the header is not a dictionary";
		if (strcmp(key, "descr") == 0) {
			bit = 1;
			why = take_descr(s, n, descr, sizeof(descr));
		} else if (strcmp(key, "fortran_order") == 0) {
			bit = 2;
			if (take_word(s, "True"))
				why = "Fortran order is not supported";
			else if (!take_word(s, "False"))
				why = "fortran_order is not a boolean";
		} else if (strcmp(key, "shape") == 0) {
			bit = 4;
			why = take_shape(s, n);
		} else {
			return "an unknown header key";
		}
		if (why)
			return why;
		if (seen & bit)
			return "a header key occurs twice";
		seen |= bit;
		comma = accept_char(s, ',');
	}
	skip_space(s);
	if (s->p != s->end)
		return "text after the header";
	return seen == 7 ? NULL : "a header key is missing";
}

static const char *size_of(struct vfm_npy *n, uint64_t total)
{
	uint64_t bytes = types[n->type].size;
	bool zero = false;

	for (int i = 0; i < n->ndim; i++)
		zero |= n->shape[i] == 0;
	for (int i = 0; i < n->ndim && !zero; i++)
		if (__builtin_mul_overflow(bytes, (uint64_t)n->shape[i], &bytes))
			return "the shape overflows";
	n->data_bytes = zero ? 0 : bytes;
	if (total < n->header_bytes || total - n->header_bytes < n->data_bytes)
		return "truncated: the shape asks for more bytes than there are";
	return total - n->header_bytes > n->data_bytes ? "more bytes than the shape asks for" : NULL;
}

static const char *parse_npy_header(struct vfm_npy *n, const uint8_t *b, size_t len, uint64_t total)
{
	struct scan s;
	size_t text, at;
	const char *why;

	if (len < 10 || memcmp(b, "\x93NUMPY", 6) != 0)
		return "not an npy file";
	if (b[6] < 1 || b[6] > 3 || b[7] != 0)
		return "an unknown npy version";
	at = b[6] == 1 ? 10 : 12;
	if (len < at)
		return "truncated header";
	text = (size_t)vfm_read_le(b + 8, at - 8);
	if (text > VFM_NPY_HEADER_MAX - at)
		return "the header is too long";
	if (len - at < text)
		return "truncated header";
	n->header_bytes = at + text;
	s = (struct scan){(const char *)b + at, (const char *)b + at + text};
	why = parse_dict(&s, n);
	return why ? why : size_of(n, total);
}

int vfm_npy_parse(struct vfm_npy *n, const void *buf, size_t len, uint64_t total, const char *what, struct vfm_err *err)
{
	struct vfm_npy r = {0};
	const char *why = parse_npy_header(&r, buf, len, total);

	if (why)
		return vfm_fail(err, VFM_EINPUT, "%s: %s", what, why);
	*n = r;
	return 0;
}

/* ---- NaN and infinities ---- */

/* The bits of the exponent; 0: of integers. */
static const uint64_t exponents[N_TYPES] = {[VFM_NPY_F16] = 0x7c00,
	[VFM_NPY_F32] = 0x7f800000,
	[VFM_NPY_F64] = 0x7ff0000000000000,
	[VFM_NPY_BF16] = 0x7f80};

static int fail_not_finite(
	const struct vfm_npy *n, uint64_t element, bool is_nan, const char *what, struct vfm_err *err)
{
	struct vfm_buf at = {0};
	uint64_t stride = vfm_npy_count(n);
	int rc;

	for (int i = 0; i < n->ndim; i++) {
		stride /= (uint64_t)n->shape[i];
		vfm_buf_addf(&at, "%s%" PRIu64, i ? "," : "", element / stride % (uint64_t)n->shape[i]);
	}
	rc = vfm_fail(
		err, VFM_EINPUT, "%s: element [%s] is %s", what, at.data ? at.data : "", is_nan ? "NaN" : "infinite");
	vfm_buf_release(&at);
	return rc;
}

bool vfm_npy_is_finite(enum vfm_npy_type type, const void *data, size_t bytes)
{
	return !exponents[type] || !vfm_count_nonfinite(data, bytes, types[type].size, exponents[type], NULL);
}

int vfm_npy_check_finite(const struct vfm_npy *n, const void *data, const char *what, struct vfm_err *err)
{
	const uint64_t exponent = exponents[n->type], fraction = (exponent & -exponent) - 1;
	const size_t size = types[n->type].size;
	uint64_t bits = 0;
	size_t at;

	if (!exponent || !vfm_count_nonfinite(data, n->data_bytes, size, exponent, &at))
		return 0;
	memcpy(&bits, (const char *)data + at, size);
	return fail_not_finite(n, at / size, bits & fraction, what, err);
}

size_t vfm_npy_header(char *buf, enum vfm_npy_type type, int ndim, const int64_t *shape)
{
	const size_t cap = VFM_NPY_HEADER_MAX;
	size_t n = 10;

	n += (size_t)snprintf(
		buf + n, cap - n, "{'descr': '%s', 'fortran_order': False, 'shape': (", types[type].descr);
	for (int i = 0; i < ndim; i++)
		n += (size_t)snprintf(buf + n, cap - n, "%s%" PRId64, i ? ", " : "", shape[i]);
	n += (size_t)snprintf(buf + n, cap - n, "%s), }", ndim == 1 ? "," : "");
	while ((n + 1) % 64 != 0)
		buf[n++] = ' ';
	buf[n++] = '\n';
	memcpy(buf, "\x93NUMPY\x01\x00", 8);
	vfm_write_le(buf + 8, n - 10, 2);
	return n;
}

int vfm_npy_save(
	const char *path, const struct vfm_npy *n, const void *data, char sha256[VFM_SHA256_HEX], struct vfm_err *err)
{
	char header[VFM_NPY_HEADER_MAX];
	size_t hlen = vfm_npy_header(header, n->type, n->ndim, n->shape);
	size_t bytes = vfm_npy_count(n) * types[n->type].size;
	struct vfm_sha256 *digest;
	struct vfm_atomic a;

	TRY(vfm_atomic_open(&a, path, err));
	if (fwrite(header, 1, hlen, a.f) != hlen || (bytes && fwrite(data, 1, bytes, a.f) != bytes)) {
		int rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", path);

		vfm_atomic_abort(&a);
		return rc;
	}
	if (sha256) {
		digest = vfm_sha256_new();
		vfm_sha256_add(digest, header, hlen);
		vfm_sha256_add(digest, data, bytes);
		vfm_sha256_end(digest, sha256);
	}
	return vfm_atomic_commit(&a, err);
}
