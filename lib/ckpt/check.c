/* check.c - compares hashes of chunks and files, and names the tensors in damaged ranges. */
#include "ckpt/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/par.h"
#include "ckpt/ckpt_impl.h"
#include "ckpt/find.h"
#include "io/file.h"
#include "io/json.h"

/* The data of one tensor in a file. */
struct tensor_range {
	uint64_t begin, end; /* bytes of the file */
	enum vfm_dtype dtype;
	int tensor; /* index into c->t */
};

struct check_piece {
	const struct vfm_ckpt_piece *p;
	int tensor; /* index into c->t */
};

struct ckpt_check {
	struct vfm_ckpt *c;
	struct vfm_ckpt_faults *faults;
	struct check_piece *piece; /* the pieces of all tensors, by file */
	size_t n_pieces, at;       /* at: the first piece of the current file */
	int64_t *nonfinite;        /* [c->n] elements seen that are NaN or infinite */
	/* of the current file */
	char *path;
	int fd;
	struct tensor_range *range; /* [n], room for [n_pieces]; by begin; without those that its header lacks */
	size_t n;
	uint64_t data; /* end of the header; 0: the header cannot be read */
};

static void report_damage(struct vfm_ckpt_faults *f, const char *what)
{
	f->damaged++;
	if (f->fn)
		f->fn(f->ctx, what);
}

static int range_cmp(const void *a, const void *b)
{
	const struct tensor_range *x = a, *y = b;

	return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Reads the header without verifying it: where it is damaged, the data of tensors may be intact, and vice versa. */
static void find_ranges(struct ckpt_check *k, int file)
{
	const struct vfm_ckpt_file *f = &k->c->file[file];
	struct vfm_st st = {0};

	k->n = 0;
	k->data = 0;
	if (ckpt_open_header(&st, k->fd, f->bytes, k->path, NULL) < 0)
		return;
	k->data = st.data;
	for (size_t i = k->at; i < k->n_pieces && k->piece[i].p->file == file; i++) {
		const struct vfm_st_tensor *s = vfm_st_find(&st, k->piece[i].p->tensor);

		if (s)
			k->range[k->n++] = (struct tensor_range){
				st.data + s->begin, st.data + s->end, s->dtype, k->piece[i].tensor};
	}
	if (k->n)
		qsort(k->range, k->n, sizeof(*k->range), range_cmp);
	vfm_st_release(&st);
}

/* Appends " (tensor 'a', 'b' and 3 more)": the tensors with data in bytes [lo, hi) of the file. */
static void name_tensors(const struct ckpt_check *k, uint64_t lo, uint64_t hi, struct vfm_buf *out)
{
	int named = 0, more = 0;

	for (size_t i = 0; i < k->n; i++) {
		const struct tensor_range *r = &k->range[i];

		if (r->end <= lo || r->begin >= hi)
			continue;
		if (named == 4)
			more++;
		else
			vfm_buf_addf(out, "%s'%.200s'", named++ ? ", " : " (tensor ", k->c->t[r->tensor].name);
	}
	if (more)
		vfm_buf_addf(out, " and %d more", more);
	if (named)
		vfm_buf_adds(out, lo < k->data ? ", or the header)" : ")");
	else if (lo < k->data || !k->data)
		vfm_buf_adds(out, " (the header)");
}

/* Counts the elements that end in bytes [lo, hi) of the file.  buf holds the bytes from lo - CARRY. */
enum { CARRY = 8 };
static void count_nonfinite(struct ckpt_check *k, const uint8_t *buf, uint64_t lo, uint64_t hi)
{
	for (size_t i = 0; i < k->n && k->range[i].begin < hi; i++) {
		const struct tensor_range *r = &k->range[i];
		uint64_t es = vfm_dtype_size(r->dtype), end = r->end < hi ? r->end : hi;
		uint64_t a = lo > r->begin ? (lo - r->begin) / es : 0, b = (end - r->begin) / es;

		if (r->end > lo && a < b)
			k->nonfinite[r->tensor] += vfm_dtype_count_nonfinite(
				r->dtype, buf + CARRY + (int64_t)(r->begin + a * es - lo), (size_t)(b - a));
	}
}

/* Reads the open file.  Returns the number of its faults. */
static int check_chunks(struct ckpt_check *k, int file, struct vfm_err *err)
{
	const struct vfm_ckpt_file *f = &k->c->file[file];
	struct vfm_sha256 *all = vfm_sha256_new();
	uint64_t chunk = (uint64_t)f->chunk_bytes;
	uint8_t *buf = vfm_malloc(CARRY + (size_t)chunk);
	char hex[VFM_SHA256_HEX];
	int rc = 0, bad = 0;

	for (uint64_t off = 0; off < f->bytes && !rc; off += chunk) {
		size_t len = (size_t)(f->bytes - off < chunk ? f->bytes - off : chunk);
		struct vfm_buf text = {0};

		rc = vfm_full_pread(k->fd, buf + CARRY, len, off, k->path, err);
		if (rc < 0)
			break;
		vfm_sha256_add(all, buf + CARRY, len);
		vfm_sha256_of(buf + CARRY, len, hex);
		if (!f->chunks || !strcmp(hex, json_string_value(json_array_get(f->chunks, (size_t)(off / chunk))))) {
			count_nonfinite(k, buf, off, off + len);
		} else {
			bad++;
			vfm_buf_addf(&text, "%s: bytes %llu to %llu: sha256 mismatch", k->path, (unsigned long long)off,
				(unsigned long long)(off + len));
			name_tensors(k, off, off + len, &text);
			report_damage(k->faults, text.data);
			vfm_buf_release(&text);
		}
		memmove(buf, buf + len, CARRY); /* an element may begin in this chunk and end in the next */
	}
	vfm_sha256_end(all, hex);
	if (!rc && !bad && f->sha256 && strcmp(hex, f->sha256) != 0) {
		char *text = vfm_strfmt("%s: sha256 mismatch of the file", k->path);

		bad++;
		report_damage(k->faults, text);
		free(text);
	}
	free(buf);
	return rc < 0 ? rc : bad;
}

/* Returns the number of faults of a file. */
static int check_file(struct ckpt_check *k, int file, struct vfm_err *err)
{
	const struct vfm_ckpt *c = k->c;
	struct vfm_err e = {0};
	int rc = c->plain ? 0 : ckpt_file_stat(c, file, &e);

	if (rc == VFM_EUSAGE) {
		report_damage(k->faults, e.msg);
		return 1;
	}
	if (rc < 0) {
		if (err)
			*err = e;
		return rc;
	}
	k->path =
		c->file[file].name == c->path ? vfm_strdup(c->path) : vfm_strfmt("%s/%s", c->path, c->file[file].name);
	k->fd = open(k->path, O_RDONLY | O_CLOEXEC);
	if (k->fd < 0) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", k->path);
	} else {
		find_ranges(k, file);
		rc = check_chunks(k, file, err);
		close(k->fd);
	}
	free(k->path);
	return rc == VFM_EINPUT ? VFM_EENV : rc; /* it changes while it is read */
}

/* Compares the pieces in a file with its header.  Keeps no descriptor, because a checkpoint may have more files than a
 * process may open. */
static int check_places(struct ckpt_check *k, int file, struct vfm_err *err)
{
	struct vfm_ckpt_file *f = &k->c->file[file];
	struct vfm_err e = {0};
	uint64_t off;
	int rc = 0;

	for (size_t i = k->at; i < k->n_pieces && k->piece[i].p->file == file && rc != VFM_EENV; i++) {
		rc = ckpt_piece_place(k->c, &k->c->t[k->piece[i].tensor], k->piece[i].p, &off, &e);
		if (rc == VFM_EUSAGE)
			report_damage(k->faults, e.msg);
	}
	if (f->fd >= 0 && !k->c->plain) {
		close(f->fd);
		f->fd = -1;
	}
	return rc == VFM_EENV ? vfm_fail(err, rc, "%s", e.msg) : 0;
}

static void report_nonfinite(const struct ckpt_check *k)
{
	for (int i = 0; i < k->c->n; i++) {
		char *text;

		if (!k->nonfinite[i])
			continue;
		k->faults->nonfinite++;
		text = vfm_strfmt("%s: tensor '%.200s': %lld of %lld elements are NaN or infinite", k->c->path,
			k->c->t[i].name, (long long)k->nonfinite[i], (long long)k->c->t[i].numel);
		if (k->faults->fn)
			k->faults->fn(k->faults->ctx, text);
		free(text);
	}
}

static int file_piece_cmp(const void *a, const void *b)
{
	return ((const struct check_piece *)a)->p->file - ((const struct check_piece *)b)->p->file;
}

static void sort_pieces(struct ckpt_check *k)
{
	const struct vfm_ckpt *c = k->c;
	size_t n = 0;

	for (int i = 0; i < c->n; i++)
		k->n_pieces += (size_t)c->t[i].n_pieces;
	k->piece = vfm_calloc(k->n_pieces + 1, sizeof(*k->piece));
	k->range = vfm_calloc(k->n_pieces + 1, sizeof(*k->range));
	for (int i = 0; i < c->n; i++)
		for (int p = 0; p < c->t[i].n_pieces; p++)
			k->piece[n++] = (struct check_piece){&c->t[i].piece[p], i};
	if (n)
		qsort(k->piece, n, sizeof(*k->piece), file_piece_cmp);
}

static int check_checkpoint_files(struct vfm_ckpt *c, struct vfm_ckpt_faults *f, struct vfm_err *err)
{
	struct ckpt_check k = {.c = c, .faults = f, .nonfinite = vfm_calloc((size_t)c->n + 1, sizeof(int64_t))};
	int rc = 0;

	sort_pieces(&k);
	for (int i = 0; i < c->n_files && rc >= 0; i++) {
		while (k.at < k.n_pieces && k.piece[k.at].p->file < i)
			k.at++;
		rc = check_file(&k, i, err);
		if (rc == 0)
			rc = check_places(&k, i, err);
	}
	if (rc >= 0)
		report_nonfinite(&k);
	free(k.piece);
	free(k.range);
	free(k.nonfinite);
	return rc < 0 ? rc : 0;
}

int vfm_ckpt_check(const char *path, struct vfm_ckpt_faults *f, struct vfm_err *err)
{
	struct vfm_ckpt *c = NULL;
	struct vfm_err e = {0};
	char *real = NULL, *manifest;
	struct stat st;
	int rc;

	TRY(vfm_ckpt_resolve(path, &real, err));
	manifest = vfm_strfmt("%s/%s", real, CKPT_MANIFEST);
	if (stat(manifest, &st) == 0)
		rc = ckpt_load_manifest(&c, real, &e);
	else
		rc = vfm_ckpt_open_as(&c, real, &(struct vfm_ckpt_how){.raw = true}, &e);
	if (rc == VFM_EUSAGE) {
		report_damage(f, e.msg);
		rc = 0;
	} else if (rc < 0 && err) {
		*err = e;
	} else if (rc == 0 && !c->n) {
		vfm_fail(&e, VFM_EUSAGE, "%s: no tensors", real);
		report_damage(f, e.msg);
	}
	if (c && rc == 0)
		rc = check_checkpoint_files(c, f, err);
	free(manifest);
	free(real);
	vfm_ckpt_close(c);
	return rc;
}

struct file_hashes {
	const struct vfm_ckpt *c;
	char (*hex)[VFM_SHA256_HEX]; /* [c->n_files] */
	int *rc;
	struct vfm_err *err;
};

static void hash_files(int64_t i0, int64_t i1, void *ctx)
{
	struct file_hashes *h = ctx;

	for (int64_t i = i0; i < i1; i++) {
		char *path = vfm_strfmt("%s/%s", h->c->path, h->c->file[i].name);

		h->rc[i] = vfm_sha256_file(path, NULL, h->hex[i], &h->err[i]);
		free(path);
	}
}

/* The hash of several plain files; the compute threads read one file each. */
static int hash_plain_files(const struct vfm_ckpt *c, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	size_t n = (size_t)c->n_files;
	struct file_hashes h = {.c = c,
		.hex = vfm_calloc(n, sizeof(*h.hex)),
		.rc = vfm_calloc(n, sizeof(*h.rc)),
		.err = vfm_calloc(n, sizeof(*h.err))};
	struct vfm_buf lines = {0};
	int rc = 0;

	vfm_par_for(c->n_files, 1, hash_files, &h);
	for (int i = 0; i < c->n_files && rc == 0; i++) {
		rc = h.rc[i];
		if (rc < 0 && err)
			*err = h.err[i];
		vfm_buf_addf(&lines, "%s  %s\n", h.hex[i], c->file[i].name);
	}
	vfm_sha256_of(lines.data, lines.len, hex);
	vfm_buf_release(&lines);
	free(h.hex);
	free(h.rc);
	free(h.err);
	return rc;
}

int vfm_ckpt_sha256(const struct vfm_ckpt *c, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	char *path;
	int rc;

	if (c->plain && strcmp(c->file[0].name, c->path) != 0)
		return hash_plain_files(c, hex, err);
	path = c->plain ? vfm_strdup(c->path) : vfm_strfmt("%s/%s", c->path, CKPT_MANIFEST);
	rc = vfm_sha256_file(path, NULL, hex, err);
	free(path);
	return rc;
}
