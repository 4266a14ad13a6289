/* Reads and writes the manifest.  The parser checks every field: all later reads rely on it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "ckpt/ckpt_impl.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"

/* ---- getters; error messages begin with `what`, the path of the value ---- */

static int get_ints(
	const json_t *obj, const char *what, const char *key, int max, int64_t *out, int *n, struct vfm_err *err)
{
	const json_t *a = json_object_get(obj, key);

	if (!json_is_array(a) || json_array_size(a) > (size_t)max)
		return vfm_fail(err, VFM_EUSAGE, "%s: %s: expected an array of at most %d integers", what, key, max);
	*n = (int)json_array_size(a);
	for (int i = 0; i < *n; i++) {
		const json_t *x = json_array_get(a, (size_t)i);

		if (!json_is_integer(x) || json_integer_value(x) < 0)
			return vfm_fail(err, VFM_EUSAGE, "%s: %s[%d]: expected an integer >= 0", what, key, i);
		out[i] = json_integer_value(x);
	}
	return 0;
}

static bool is_sha256(const char *s)
{
	return s && strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64;
}

/* ---- files ---- */

static int parse_file(struct vfm_ckpt_file *f, const json_t *j, const char *what, struct vfm_err *err)
{
	int64_t bytes;
	size_t i;
	json_t *x;

	f->fd = -1;
	if (!json_is_object(j))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", what);
	TRY(vfm_json_str(j, what, "name", true, &f->name, err));
	if (!f->name[0] || f->name[0] == '.' || strchr(f->name, '/') || strlen(f->name) > 255)
		return vfm_fail(err, VFM_EUSAGE, "%s: bad file name '%.100s'", what, f->name);
	TRY(vfm_json_i64(j, what, "bytes", true, 10, INT64_MAX / 4, &bytes, err));
	TRY(vfm_json_str(j, what, "sha256", true, &f->sha256, err));
	TRY(vfm_json_i64(j, what, "chunk_bytes", true, 4096, CKPT_MAX_CHUNK, &f->chunk_bytes, err));
	f->bytes = (uint64_t)bytes;
	f->chunks = json_object_get(j, "chunks");
	if (!is_sha256(f->sha256))
		return vfm_fail(err, VFM_EUSAGE, "%s: sha256: expected 64 hex digits", what);
	if (!json_is_array(f->chunks) ||
		(int64_t)json_array_size(f->chunks) != (bytes + f->chunk_bytes - 1) / f->chunk_bytes)
		return vfm_fail(err, VFM_EUSAGE, "%s: chunks: expected one sha256 for each %lld bytes", what,
			(long long)f->chunk_bytes);
	json_array_foreach(f->chunks, i, x) if (!is_sha256(json_string_value(x))) return vfm_fail(
		err, VFM_EUSAGE, "%s: chunks[%zu]: expected 64 hex digits", what, i);
	return 0;
}

struct name_ix {
	const char *name;
	int ix;
};

static int name_ix_cmp(const void *a, const void *b)
{
	return strcmp(((const struct name_ix *)a)->name, ((const struct name_ix *)b)->name);
}

static int parse_files(struct vfm_ckpt *c, const json_t *arr, struct name_ix **index, struct vfm_err *err)
{
	size_t n = json_array_size(arr);

	if (!json_is_array(arr) || n > 1 << 24)
		return vfm_fail(err, VFM_EUSAGE, "files: expected an array");
	c->file = vfm_calloc(n + 1, sizeof(*c->file));
	*index = vfm_calloc(n + 1, sizeof(**index));
	for (size_t i = 0; i < n; i++) {
		char what[64];

		snprintf(what, sizeof(what), "files[%zu]", i);
		c->n_files++;
		c->file[i].fd = -1;
		TRY(parse_file(&c->file[i], json_array_get(arr, i), what, err));
		c->bytes += (int64_t)(c->file[i].bytes < INT64_MAX / 2 - (uint64_t)c->bytes ? c->file[i].bytes : 0);
		(*index)[i] = (struct name_ix){c->file[i].name, (int)i};
	}
	qsort(*index, n, sizeof(**index), name_ix_cmp);
	for (size_t i = 1; i < n; i++)
		if (!strcmp((*index)[i - 1].name, (*index)[i].name))
			return vfm_fail(err, VFM_EUSAGE, "files: '%s' is listed twice", (*index)[i].name);
	return 0;
}

/* ---- tensors ---- */

static int parse_piece(const struct vfm_ckpt *c, const struct name_ix *files, const struct vfm_ckpt_tensor *t,
	struct vfm_ckpt_piece *p, const json_t *j, const char *what, struct vfm_err *err)
{
	struct name_ix key, *hit;
	const json_t *box = json_object_get(j, "box");
	int64_t ab[2] = {0, 0};
	int n, m;

	if (!json_is_object(j))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", what);
	TRY(vfm_json_str(j, what, "file", true, &key.name, err));
	TRY(vfm_json_str(j, what, "tensor", true, &p->tensor, err));
	hit = bsearch(&key, files, (size_t)c->n_files, sizeof(key), name_ix_cmp);
	if (!hit)
		return vfm_fail(err, VFM_EUSAGE, "%s: file '%.100s' is not listed in files", what, key.name);
	p->file = hit->ix;
	if (!box) {
		TRY(get_ints(j, what, "range", 2, ab, &n, err));
		if (n != 2 || ab[0] > ab[1] || ab[1] > t->numel)
			return vfm_fail(err, VFM_EUSAGE, "%s: range is beyond the tensor", what);
		p->is_range = true;
		p->a = ab[0];
		p->b = ab[1];
		p->numel = ab[1] - ab[0];
		return 0;
	}
	TRY(get_ints(box, what, "offset", VFM_NDIM_MAX, p->box.off, &n, err));
	TRY(get_ints(box, what, "extent", VFM_NDIM_MAX, p->box.ext, &m, err));
	p->box.ndim = n;
	if (n != t->ndim || m != t->ndim || !vfm_box_inside(&p->box, t->shape))
		return vfm_fail(err, VFM_EUSAGE, "%s: box is beyond the tensor", what);
	p->numel = vfm_box_numel(&p->box);
	return 0;
}

struct extent { /* the smallest range of the flattened tensor that contains the piece */
	int64_t a, b;
	int piece;
};

static int extent_cmp(const void *a, const void *b)
{
	const struct extent *x = a, *y = b;

	return (x->a > y->a) - (x->a < y->a);
}

static void hull(const struct vfm_ckpt_tensor *t, const struct vfm_ckpt_piece *p, struct extent *e)
{
	int64_t s = 1;

	e->a = p->a;
	e->b = p->b;
	if (p->is_range)
		return;
	e->a = 0;
	e->b = 1;
	for (int d = t->ndim; d-- > 0;) {
		e->a += p->box.off[d] * s;
		e->b += (p->box.off[d] + p->box.ext[d] - 1) * s;
		s *= t->shape[d];
	}
}

static int piece_boxes(
	const struct vfm_ckpt_tensor *t, const struct vfm_ckpt_piece *p, struct vfm_box out[2 * VFM_NDIM_MAX])
{
	if (p->is_range)
		return vfm_range_boxes(t->ndim, t->shape, p->a, p->b, out);
	out[0] = p->box;
	return 1;
}

static bool pieces_meet(const struct vfm_ckpt_tensor *t, const struct vfm_ckpt_piece *p, const struct vfm_ckpt_piece *q)
{
	struct vfm_box x[2 * VFM_NDIM_MAX], y[2 * VFM_NDIM_MAX];
	int n = piece_boxes(t, p, x), m = piece_boxes(t, q, y);

	for (int i = 0; i < n; i++)
		for (int k = 0; k < m; k++)
			if (vfm_box_intersect(&x[i], &y[k], NULL))
				return true;
	return false;
}

/* Pieces cover the tensor exactly once if they are within it, disjoint, and have as many elements.  The check compares
 * only pieces with overlapping extents; `*budget` bounds the comparisons for a hostile manifest. */
static int check_cover(const struct vfm_ckpt_tensor *t, int64_t *budget, struct vfm_err *err)
{
	struct extent *e = vfm_calloc((size_t)t->n_pieces + 1, sizeof(*e));
	int64_t total = 0;
	int n = 0, rc = 0;

	for (int i = 0; i < t->n_pieces; i++) {
		if (!t->piece[i].numel)
			continue;
		hull(t, &t->piece[i], &e[n]);
		e[n++].piece = i;
		if (__builtin_add_overflow(total, t->piece[i].numel, &total))
			total = INT64_MAX;
	}
	if (total != t->numel)
		rc = vfm_fail(err, VFM_EUSAGE, "tensor '%.200s': its pieces have %lld elements, its shape has %lld",
			t->name, (long long)total, (long long)t->numel);
	if (n)
		qsort(e, (size_t)n, sizeof(*e), extent_cmp);
	for (int i = 0; i < n && !rc; i++) {
		for (int k = i + 1; k < n && e[k].a < e[i].b && !rc; k++) {
			if (--*budget < 0)
				rc = vfm_fail(err, VFM_EUSAGE, "tensor '%.200s': too many interleaved pieces", t->name);
			else if (pieces_meet(t, &t->piece[e[i].piece], &t->piece[e[k].piece]))
				rc = vfm_fail(err, VFM_EUSAGE, "tensor '%.200s': pieces %d and %d overlap", t->name,
					e[i].piece, e[k].piece);
		}
	}
	free(e);
	return rc;
}

static int parse_manifest_tensor(struct vfm_ckpt *c, const struct name_ix *files, struct vfm_ckpt_tensor *t,
	const json_t *j, size_t index, int64_t *budget, struct vfm_err *err)
{
	const json_t *pieces = json_object_get(j, "pieces");
	const char *dtype;
	char what[320];

	snprintf(what, sizeof(what), "tensors[%zu]", index);
	if (!json_is_object(j))
		return vfm_fail(err, VFM_EUSAGE, "%s: expected an object", what);
	TRY(vfm_json_str(j, what, "name", true, &t->name, err));
	snprintf(what, sizeof(what), "tensor '%.250s'", t->name);
	TRY(vfm_json_str(j, what, "dtype", true, &dtype, err));
	if (vfm_dtype_parse(dtype, &t->dtype, err) < 0) {
		vfm_err_context(err, "%s: dtype", what);
		return VFM_EUSAGE;
	}
	TRY(get_ints(j, what, "shape", VFM_NDIM_MAX, t->shape, &t->ndim, err));
	t->nonfinite = 0;
	TRY(vfm_json_i64(j, what, "nonfinite", false, 0, INT64_MAX, &t->nonfinite, err));
	t->numel = vfm_shape_numel(t->ndim, t->shape);
	if (t->numel < 0 || t->numel > INT64_MAX / 16)
		return vfm_fail(err, VFM_EUSAGE, "%s: shape is too large", what);
	t->bytes = t->numel * (int64_t)vfm_dtype_size(t->dtype);
	if (!json_is_array(pieces) || json_array_size(pieces) > INT32_MAX)
		return vfm_fail(err, VFM_EUSAGE, "%s: pieces: expected an array", what);
	t->n_pieces = (int)json_array_size(pieces);
	t->piece = vfm_arena_alloc(&c->priv->arena, (size_t)(t->n_pieces + 1) * sizeof(*t->piece));
	for (int i = 0; i < t->n_pieces; i++) {
		char place[360];

		snprintf(place, sizeof(place), "%s: pieces[%d]", what, i);
		TRY(parse_piece(c, files, t, &t->piece[i], json_array_get(pieces, (size_t)i), place, err));
	}
	return check_cover(t, budget, err);
}

int ckpt_tensor_cmp(const void *a, const void *b)
{
	return strcmp(((const struct vfm_ckpt_tensor *)a)->name, ((const struct vfm_ckpt_tensor *)b)->name);
}

static int parse_root(struct vfm_ckpt *c, struct name_ix **index, struct vfm_err *err)
{
	const json_t *root = c->priv->root, *tensors = json_object_get(root, "tensors");
	int64_t v, budget = 20000000;

	if (!json_is_object(root))
		return vfm_fail(err, VFM_EUSAGE, "expected an object");
	TRY(vfm_json_i64(root, "", "v", true, 1, INT64_MAX, &v, err));
	if (v != 1) /* not VFM_EUSAGE, which would mean damage */
		return vfm_fail(
			err, VFM_EENV, "v: format %lld is newer than this program, which supports 1", (long long)v);
	TRY(vfm_json_i64(root, "", "step", true, 0, INT64_MAX, &c->step, err));
	TRY(vfm_json_i32(root, "", "world", true, 1, 1 << 24, &c->world, err));
	c->nonfinite = -1;
	TRY(vfm_json_i64(root, "", "nonfinite", false, 0, INT64_MAX, &c->nonfinite, err));
	c->config = json_object_get(root, "config");
	c->state = json_object_get(root, "state");
	TRY(parse_files(c, json_object_get(root, "files"), index, err));
	if (!json_is_array(tensors) || json_array_size(tensors) > 1 << 24)
		return vfm_fail(err, VFM_EUSAGE, "tensors: expected an array");
	c->t = vfm_calloc(json_array_size(tensors) + 1, sizeof(*c->t));
	for (size_t i = 0; i < json_array_size(tensors); i++) {
		c->n++;
		TRY(parse_manifest_tensor(c, *index, &c->t[i], json_array_get(tensors, i), i, &budget, err));
	}
	qsort(c->t, (size_t)c->n, sizeof(*c->t), ckpt_tensor_cmp);
	for (int i = 1; i < c->n; i++)
		if (!strcmp(c->t[i - 1].name, c->t[i].name))
			return vfm_fail(err, VFM_EUSAGE, "tensor '%.200s' is listed twice", c->t[i].name);
	return 0;
}

int ckpt_parse_manifest(struct vfm_ckpt **out, const char *text, size_t len, struct vfm_err *err)
{
	struct vfm_ckpt *c = ckpt_new("");
	struct name_ix *index = NULL;
	int rc = 0;

	*out = NULL;
	c->priv->root = vfm_json_parse(text, len, CKPT_MANIFEST, err);
	if (!c->priv->root)
		rc = VFM_EUSAGE;
	else if ((rc = parse_root(c, &index, err)) < 0)
		vfm_err_context(err, "%s", CKPT_MANIFEST);
	free(index);
	if (rc < 0)
		vfm_ckpt_close(c);
	else
		*out = c;
	return rc;
}

int ckpt_file_stat(const struct vfm_ckpt *c, int file, struct vfm_err *err)
{
	const struct vfm_ckpt_file *f = &c->file[file];
	char *p = vfm_strfmt("%s/%s", c->path, f->name);
	struct stat st;
	int rc = 0, fd;

	if (stat(p, &st) != 0) {
		rc = vfm_fail_errno(err, ckpt_open_code(errno), "cannot open '%s'", p);
	} else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->bytes) {
		fd = vfm_open_regular(p, NULL, NULL);
		rc = fd < 0 ? 0 : ckpt_refuse_text(fd, (uint64_t)st.st_size, p, err);
		if (rc == 0)
			rc = vfm_fail(err, VFM_EUSAGE, "%s: %lld bytes; the manifest lists %llu", p,
				(long long)st.st_size, (unsigned long long)f->bytes);
		if (fd >= 0)
			close(fd);
	}
	free(p);
	return rc;
}

/* ---- SHA256SUMS, in the format of sha256sum(1), protects the manifest ---- */

static int check_sums(const struct vfm_ckpt *c, const char *sums, const char *manifest, size_t len, struct vfm_err *err)
{
	struct vfm_buf want = {0};
	char hex[VFM_SHA256_HEX];
	const char *eol = strchr(sums, '\n');
	int rc = 0;

	vfm_sha256_of(manifest, len, hex);
	vfm_buf_addf(&want, "%s  %s\n", hex, CKPT_MANIFEST);
	if (!eol || (size_t)(eol + 1 - sums) != want.len || memcmp(sums, want.data, want.len) != 0) {
		rc = vfm_fail(err, VFM_EUSAGE, "%s/%s is damaged: its sha256 does not match %s", c->path, CKPT_MANIFEST,
			CKPT_SUMS);
	} else {
		for (int i = 0; i < c->n_files; i++)
			vfm_buf_addf(&want, "%s  %s\n", c->file[i].sha256, c->file[i].name);
		if (strcmp(sums, want.data) != 0)
			rc = vfm_fail(err, VFM_EUSAGE, "%s/%s is damaged: it does not match %s", c->path, CKPT_SUMS,
				CKPT_MANIFEST);
	}
	vfm_buf_release(&want);
	return rc;
}

/* Reads a file of the checkpoint directory.  VFM_EUSAGE: it is absent or too large. */
static int read_small(const char *path, char **text, size_t *len, struct vfm_err *err)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), rc; /* does not wait for the writer of a FIFO */

	if (fd < 0)
		return vfm_fail_errno(err, ckpt_open_code(errno), "cannot open '%s'", path);
	close(fd);
	rc = vfm_read_regular(path, CKPT_MAX_MANIFEST, text, len, err);
	if (rc != VFM_EINPUT)
		return rc;
	if (err)
		err->code = VFM_EUSAGE;
	return VFM_EUSAGE;
}

int ckpt_load_manifest(struct vfm_ckpt **out, const char *path, struct vfm_err *err)
{
	char *mp = vfm_strfmt("%s/%s", path, CKPT_MANIFEST), *sp = vfm_strfmt("%s/%s", path, CKPT_SUMS);
	char *text = NULL, *sums = NULL, hex[VFM_SHA256_HEX];
	size_t len, sums_len;
	struct vfm_ckpt *c = NULL;
	int rc;

	*out = NULL;
	TRY_OUT(read_small(mp, &text, &len, err));
	TRY_OUT(read_small(sp, &sums, &sums_len, err));
	/* Verifies the hash before parsing, so that the message reports damage instead of a syntax error. */
	vfm_sha256_of(text, len, hex);
	if (strncmp(sums, hex, 64) != 0) {
		rc = vfm_fail(err, VFM_EUSAGE, "%s is damaged: its sha256 does not match %s", mp, CKPT_SUMS);
		goto out;
	}
	rc = ckpt_parse_manifest(&c, text, len, err);
	if (rc < 0) {
		vfm_err_context(err, "%s", path);
		goto out;
	}
	free(c->path);
	c->path = vfm_strdup(path);
	TRY_OUT(check_sums(c, sums, text, len, err));
	*out = c;
	c = NULL;
out:
	vfm_ckpt_close(c);
	free(text);
	free(sums);
	free(mp);
	free(sp);
	return rc;
}

/* ---- writing ---- */

static int by_json_name(const void *a, const void *b)
{
	const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;

	return strcmp(json_string_value(json_object_get(x, "name")), json_string_value(json_object_get(y, "name")));
}

static int64_t nonfinite_of(const json_t *tensor)
{
	return json_integer_value(json_object_get(tensor, "nonfinite"));
}

json_t *ckpt_merge_tensors(json_t **ranks, int size, int64_t *nonfinite)
{
	json_t *by_name = json_object(), *out = json_array(), **v;
	const char *name;
	json_t *t;
	size_t n = 0, i;

	for (int r = 0; r < size; r++) {
		json_array_foreach(json_object_get(ranks[r], "tensors"), i, t)
		{
			json_t *have;

			name = json_string_value(json_object_get(t, "name"));
			have = name ? json_object_get(by_name, name) : NULL;
			if (!have && name)
				json_object_set(by_name, name, t);
			if (!have)
				continue;
			json_array_extend(json_object_get(have, "pieces"), json_object_get(t, "pieces"));
			json_object_set_new(have, "nonfinite", json_integer(nonfinite_of(have) + nonfinite_of(t)));
		}
	}
	v = vfm_calloc(json_object_size(by_name) + 1, sizeof(json_t *));
	json_object_foreach(by_name, name, t) v[n++] = t;
	qsort(v, n, sizeof(json_t *), by_json_name);
	*nonfinite = 0;
	for (i = 0; i < n; i++) {
		json_array_append(out, v[i]);
		*nonfinite += nonfinite_of(v[i]);
		if (!nonfinite_of(v[i]))
			json_object_del(v[i], "nonfinite");
	}
	free(v);
	json_decref(by_name);
	return out;
}

/* One line per tensor and per file, so that people can read and diff the manifest. */
void ckpt_manifest_text(const json_t *m, struct vfm_buf *b)
{
	const char *key;
	const json_t *v, *x;
	size_t i;
	bool first = true;

	vfm_buf_adds(b, "{");
	json_object_foreach((json_t *)(uintptr_t)m, key, v)
	{
		vfm_buf_addf(b, "%s\n\"%s\":", first ? "" : ",", key);
		first = false;
		if (!json_is_array(v)) {
			vfm_json_text(b, v, 0);
			continue;
		}
		json_array_foreach(v, i, x)
		{
			vfm_buf_adds(b, i ? ",\n " : "[\n ");
			vfm_json_text(b, x, 0);
		}
		vfm_buf_adds(b, json_array_size(v) ? "\n]" : "[]");
	}
	vfm_buf_adds(b, "\n}\n");
}
