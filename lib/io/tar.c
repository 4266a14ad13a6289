/* tar.c - reads ustar, pax and GNU headers; writes ustar with pax for long names and large files. */
#include "io/tar.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/file.h"

#define EXT_MAX (1u << 20) /* pax and GNU long-name payloads */

struct raw { /* POSIX.1-1988 header block */
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], chksum[8], type, linkname[100];
	char magic[6], version[2], uname[32], gname[32], devmajor[8], devminor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct raw) == VFM_TAR_BLOCK, "tar header");

static uint64_t padded_size(uint64_t size)
{
	return (size + VFM_TAR_BLOCK - 1) / VFM_TAR_BLOCK * VFM_TAR_BLOCK;
}

uint64_t vfm_tar_end_of(const struct vfm_tar_member *m)
{
	return m->data_offset + padded_size(m->size);
}

static bool is_shard_note(const char *name)
{
	const char *end = strncmp(name, "__", 2) == 0 ? name + strcspn(name, "/") : NULL;

	return end && end - name >= 4 && end[-1] == '_' && end[-2] == '_';
}

bool vfm_tar_is_name(const char *name)
{
	static const char *const endings[] = {
		".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".txz", ".tar.bz2", ".tbz2", ".tar.lz4"};

	for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
		if (vfm_name_ends(name, endings[i]))
			return true;
	return false;
}

size_t vfm_tar_split_name(const char *name, const char **part)
{
	const char *base = strrchr(name, '/'), *dot;

	base = base ? base + 1 : name;
	dot = strchr(base, '.');
	if (!dot || dot == base || is_shard_note(name))
		return 0;
	*part = dot + 1;
	return (size_t)(dot - name);
}

/* ---- reading ---- */

static unsigned checksum(const uint8_t *b)
{
	unsigned sum = 0;

	for (int i = 0; i < VFM_TAR_BLOCK; i++)
		sum += i >= 148 && i < 156 ? ' ' : b[i];
	return sum;
}

/* Octal digits, spaces around them allowed; or GNU's base 256 (first byte 0x80). */
static bool parse_octal(const char *f, size_t n, uint64_t *out)
{
	const uint8_t *b = (const uint8_t *)f;
	uint64_t v = 0;
	size_t i = 0;

	if (b[0] & 0x80) {
		v = b[0] & 0x7f;
		for (i = 1; i < n; i++) {
			if (v >> 55)
				return false;
			v = v << 8 | b[i];
		}
		*out = v;
		return true;
	}
	while (i < n && b[i] == ' ')
		i++;
	if (i == n || b[i] < '0' || b[i] > '7')
		return false;
	for (; i < n && b[i] >= '0' && b[i] <= '7'; i++)
		v = v << 3 | (uint64_t)(b[i] - '0');
	for (; i < n; i++)
		if (b[i] != ' ' && b[i] != 0)
			return false;
	*out = v;
	return true;
}

static bool all_zero(const uint8_t *b)
{
	for (int i = 0; i < VFM_TAR_BLOCK; i++)
		if (b[i])
			return false;
	return true;
}

struct ext { /* values of extended headers for the next member */
	bool has_name, has_size;
	uint64_t size;
};

static bool set_name(struct vfm_tar_member *m, const char *s, size_t n)
{
	if (n == 0 || n > VFM_TAR_NAME_MAX || memchr(s, 0, n))
		return false;
	memcpy(m->name, s, n);
	m->name[n] = 0;
	return true;
}

static bool decimal(const char *s, size_t n, uint64_t *out)
{
	*out = 0;
	for (size_t i = 0; i < n; i++) {
		if (s[i] < '0' || s[i] > '9' || *out > (UINT64_MAX >> 4) / 10)
			return false;
		*out = *out * 10 + (uint64_t)(s[i] - '0');
	}
	return n > 0;
}

/* Records "LEN KEY=VALUE\n", LEN counting itself. */
static const char *parse_pax(const char *p, size_t n, bool global, struct vfm_tar_member *m, struct ext *x)
{
	while (n > 0) {
		const char *space = memchr(p, ' ', n < 24 ? n : 24), *eq;
		uint64_t len;
		size_t klen, vlen;

		if (!space || !decimal(p, (size_t)(space - p), &len) || len > n || len < (size_t)(space - p) + 3 ||
			p[len - 1] != '\n')
			return "a bad pax header";
		eq = memchr(space + 1, '=', len - (size_t)(space + 1 - p));
		if (!eq)
			return "a bad pax header";
		klen = (size_t)(eq - space - 1);
		vlen = len - (size_t)(eq + 1 - p) - 1;
		if (klen >= 10 && memcmp(space + 1, "GNU.sparse", 10) == 0)
			return "sparse members are not supported";
		if (klen == 4 && memcmp(space + 1, "path", 4) == 0) {
			if (global || !set_name(m, eq + 1, vlen))
				return "a bad pax path";
			x->has_name = true;
		} else if (klen == 4 && memcmp(space + 1, "size", 4) == 0) {
			if (global || !decimal(eq + 1, vlen, &x->size))
				return "a bad pax size";
			x->has_size = true;
		}
		p += len;
		n -= len;
	}
	return NULL;
}

static const char *raw_name(const struct raw *h, struct vfm_tar_member *m)
{
	size_t n = strnlen(h->name, sizeof(h->name)), p = 0;
	char full[256];

	if (memcmp(h->magic, "ustar\0", 6) == 0)
		p = strnlen(h->prefix, sizeof(h->prefix));
	memcpy(full, h->prefix, p);
	if (p > 0)
		full[p++] = '/';
	memcpy(full + p, h->name, n);
	return n > 0 && set_name(m, full, p + n) ? NULL : "a member without a name";
}

/* Returns n bytes at t->pos, which lie within the archive: of memory, or of the file in own [n].  NULL: unreadable. */
static const void *tar_bytes(const struct vfm_tar *t, void *own, size_t n)
{
	if (t->data)
		return t->data + t->pos;
	return vfm_full_pread(t->fd, own, n, t->pos, t->what, NULL) < 0 ? NULL : own;
}

#define UNREADABLE "cannot read the header"

/* An extended header: 'x', 'g', 'L' or 'K'. */
static const char *take_ext(struct vfm_tar *t, char type, uint64_t size, struct vfm_tar_member *m, struct ext *x)
{
	const char *p, *why = NULL;
	char *own;

	if (size > EXT_MAX)
		return "an extended header is too long";
	own = t->data ? NULL : vfm_malloc((size_t)size + 1);
	p = tar_bytes(t, own, (size_t)size);
	if (!p) {
		why = UNREADABLE;
	} else if (type == 'L') {
		if (set_name(m, p, strnlen(p, size)))
			x->has_name = true;
		else
			why = "a bad long name";
	} else if (type != 'K') {
		why = parse_pax(p, size, type == 'g', m, x);
	}
	free(own);
	t->pos += padded_size(size);
	return why;
}

/* Takes the header block at t->pos.  *done: it was that of a member. */
static const char *take_block(
	struct vfm_tar *t, const struct raw *h, struct vfm_tar_member *m, struct ext *x, bool *done)
{
	uint64_t sum, size;
	bool ext = h->type == 'x' || h->type == 'g' || h->type == 'L' || h->type == 'K';

	if (!parse_octal(h->chksum, sizeof(h->chksum), &sum) || sum != checksum((const uint8_t *)h))
		return "wrong header checksum";
	if (memcmp(h->magic, "ustar", 5) != 0 && memcmp(h->magic, "\0\0\0\0\0", 6) != 0)
		return "an unknown kind of header";
	if (!parse_octal(h->size, sizeof(h->size), &size))
		return "a bad size";
	if (!ext && x->has_size)
		size = x->size;
	t->pos += VFM_TAR_BLOCK;
	if (size > t->size - t->pos || padded_size(size) > t->size - t->pos)
		return "truncated member";
	if (ext)
		return take_ext(t, h->type, size, m, x);
	if (h->type == 'S' || h->type == 'M')
		return "sparse and multi-volume members are not supported";
	m->type = h->type == 0 || h->type == '7' ? '0' : h->type;
	m->data_offset = t->pos;
	m->size = size;
	t->pos += padded_size(size);
	*done = true;
	return x->has_name ? NULL : raw_name(h, m);
}

void vfm_tar_init(struct vfm_tar *t, const void *data, uint64_t size, const char *what)
{
	*t = (struct vfm_tar){.data = data, .fd = -1, .size = size, .what = what};
}

void vfm_tar_init_fd(struct vfm_tar *t, int fd, uint64_t size, const char *what)
{
	*t = (struct vfm_tar){.fd = fd, .size = size, .what = what};
}

int vfm_tar_next(struct vfm_tar *t, struct vfm_tar_member *m, struct vfm_err *err)
{
	struct ext x = {0};
	const char *why = NULL;
	uint64_t start = t->pos, at = t->pos;
	struct raw own;
	bool done = false;

	m->header_offset = start;
	while (!done && !why) {
		const void *block;

		at = t->pos;
		if (t->pos > t->size || t->size - t->pos < VFM_TAR_BLOCK)
			why = "truncated: no end of archive";
		else if (!(block = tar_bytes(t, &own, sizeof(own))))
			why = UNREADABLE;
		else if (!all_zero(block))
			why = take_block(t, block, m, &x, &done);
		else if (t->pos == start)
			return 0;
		else
			why = "an extended header without a member";
	}
	if (!why)
		return 1;
	t->pos = t->size; /* stop: the rest is unreliable */
	return vfm_fail(err, VFM_EINPUT, "'%s': %s (at byte %" PRIu64 ")", t->what, why, at);
}

/* ---- writing ---- */

void vfm_tar_writer_init(struct vfm_tar_writer *w, FILE *f, const char *what)
{
	*w = (struct vfm_tar_writer){.f = f, .what = what};
}

static int write_bytes(struct vfm_tar_writer *w, const void *data, size_t len, struct vfm_err *err)
{
	if (len && fwrite(data, 1, len, w->f) != len)
		return vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", w->what);
	w->pos += len;
	return 0;
}

static int pad_member(struct vfm_tar_writer *w, struct vfm_err *err)
{
	static const char zero[VFM_TAR_BLOCK];

	return write_bytes(w, zero, padded_size(w->pos) - w->pos, err);
}

static int put_header(struct vfm_tar_writer *w, const char *prefix, size_t plen, const char *name, size_t nlen,
	uint64_t size, char type, struct vfm_err *err)
{
	struct raw h;

	memset(&h, 0, sizeof(h));
	memcpy(h.name, name, nlen);
	memcpy(h.prefix, prefix, plen);
	memcpy(h.mode, "0000644", 8);
	memcpy(h.uid, "0000000", 8);
	memcpy(h.gid, "0000000", 8);
	snprintf(h.size, sizeof(h.size), "%011" PRIo64, size);
	memcpy(h.mtime, "00000000000", 12);
	h.type = type;
	memcpy(h.magic, "ustar", 6);
	memcpy(h.version, "00", 2);
	snprintf(h.chksum, sizeof(h.chksum), "%06o", checksum((const uint8_t *)&h));
	h.chksum[7] = ' ';
	return write_bytes(w, &h, sizeof(h), err);
}

/* "LEN key=value\n", where LEN counts its own digits. */
static void pax_record(struct vfm_buf *b, const char *key, const char *value)
{
	size_t n = strlen(key) + strlen(value) + 3, len = n + 1;
	char digits[24];

	while (n + (size_t)snprintf(digits, sizeof(digits), "%zu", len) != len)
		len = n + strlen(digits);
	vfm_buf_addf(b, "%zu %s=%s\n", len, key, value);
}

static int put_pax(struct vfm_tar_writer *w, const char *name, uint64_t size, struct vfm_err *err)
{
	struct vfm_buf b = {0};
	char text[24];
	int rc;

	if (name)
		pax_record(&b, "path", name);
	if (size) {
		snprintf(text, sizeof(text), "%" PRIu64, size);
		pax_record(&b, "size", text);
	}
	TRY_OUT(put_header(w, "", 0, "pax", 3, b.len, 'x', err));
	TRY_OUT(write_bytes(w, b.data, b.len, err));
	rc = pad_member(w, err);
out:
	vfm_buf_release(&b);
	return rc;
}

int vfm_tar_begin(struct vfm_tar_writer *w, const char *name, uint64_t size, uint64_t *data_offset, struct vfm_err *err)
{
	const uint64_t octal_max = 077777777777;
	size_t n = strlen(name), p = 0;
	bool long_name = n > 100, long_size = size > octal_max;

	if (n == 0 || n > VFM_TAR_NAME_MAX)
		return vfm_fail(err, VFM_EINPUT, "'%s': a member name of %zu bytes", w->what, n);
	for (size_t i = 0; long_name && i < n && i <= 155; i++) { /* ustar: prefix "/" name */
		if (name[i] == '/' && i > 0 && n - i - 1 <= 100 && n - i - 1 > 0) {
			p = i;
			long_name = false;
		}
	}
	if (long_name || long_size)
		TRY(put_pax(w, long_name ? name : NULL, long_size ? size : 0, err));
	if (long_name)
		TRY(put_header(w, "", 0, name, 100, long_size ? 0 : size, '0', err));
	else
		TRY(put_header(w, name, p, p ? name + p + 1 : name, p ? n - p - 1 : n, long_size ? 0 : size, '0', err));
	w->left = size;
	if (data_offset)
		*data_offset = w->pos;
	return 0;
}

int vfm_tar_write(struct vfm_tar_writer *w, const void *data, size_t len, struct vfm_err *err)
{
	if (len > w->left)
		return vfm_fail(err, VFM_EINPUT, "'%s': a member is longer than was announced", w->what);
	w->left -= len;
	return write_bytes(w, data, len, err);
}

int vfm_tar_end(struct vfm_tar_writer *w, struct vfm_err *err)
{
	if (w->left)
		return vfm_fail(err, VFM_EINPUT, "'%s': a member is shorter than was announced", w->what);
	return pad_member(w, err);
}

int vfm_tar_add(struct vfm_tar_writer *w, const char *name, const void *data, size_t len, uint64_t *data_offset,
	struct vfm_err *err)
{
	TRY(vfm_tar_begin(w, name, len, data_offset, err));
	TRY(vfm_tar_write(w, data, len, err));
	return vfm_tar_end(w, err);
}

int vfm_tar_finish(struct vfm_tar_writer *w, struct vfm_err *err)
{
	static const char zero[2 * VFM_TAR_BLOCK];

	return write_bytes(w, zero, sizeof(zero), err);
}
