/* ckpt.c - opens manifests, finds tensors, and reads slices of them through chunks with verified hashes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "ckpt/ckpt_impl.h"
#include "ckpt/find.h"
#include "io/file.h"
#include "io/json.h"

enum { CONVERT_ELEMS = 32768 };

int vfm_ckpt_want_model(const struct vfm_ckpt *c, struct vfm_err *err)
{
	static const char *const signs[] = {
		"lora_A.", "lora_B.", "lora_down.", "lora_up.", "_lora.", "lora_embedding_", ".lokr_w", ".hada_w"};

	for (int i = 0; c->plain && i < c->n; i++)
		for (size_t k = 0; k < sizeof(signs) / sizeof(*signs); k++)
			if (strstr(c->t[i].name, signs[k]))
				return vfm_fail(err, VFM_EUSAGE,
					"%s: a LoRA file, not a model (tensor '%.200s'): 'vfm-ckpt merge BASE %s DST' "
					"adds it to its base model, vfm-sample takes it as --lora, vfm-train as "
					"--init-lora",
					c->path, c->t[i].name, c->path);
	return 0;
}

struct vfm_ckpt *ckpt_new(const char *path)
{
	struct vfm_ckpt *c = vfm_calloc(1, sizeof(*c));

	c->priv = vfm_calloc(1, sizeof(*c->priv));
	c->path = vfm_strdup(path);
	for (int i = 0; i < 4; i++)
		c->priv->slot[i].file = -1;
	return c;
}

void vfm_ckpt_close(struct vfm_ckpt *c)
{
	struct ckpt_priv *pv;

	if (!c)
		return;
	pv = c->priv;
	for (int i = 0; i < c->n_files; i++) {
		if (c->file[i].fd >= 0)
			close(c->file[i].fd);
		if (c->file[i].have_st)
			vfm_st_release(&c->file[i].st);
	}
	for (int i = 0; i < 4; i++)
		free(pv->slot[i].buf);
	json_decref(pv->root);
	json_decref(pv->state);
	json_decref(pv->config);
	vfm_foreign_map_release(&pv->map);
	vfm_arena_release(&pv->arena);
	ckpt_adapters_free(pv->adapters);
	free(pv->tmp);
	free(pv->scaled);
	free(pv);
	free(c->file);
	free(c->t);
	free(c->path);
	free(c);
}

int vfm_ckpt_open(struct vfm_ckpt **out, const char *path, struct vfm_err *err)
{
	return vfm_ckpt_open_as(out, path, NULL, err);
}

int vfm_ckpt_open_as(struct vfm_ckpt **out, const char *path, const struct vfm_ckpt_how *how, struct vfm_err *err)
{
	struct vfm_ckpt *c = NULL;
	struct stat st;
	char *real = NULL, *m = NULL;
	int rc;

	*out = NULL;
	TRY(vfm_ckpt_resolve(path, &real, err));
	m = vfm_strfmt("%s/%s", real, CKPT_MANIFEST);
	if (stat(real, &st) == 0 && (!S_ISDIR(st.st_mode) || access(m, F_OK) != 0)) {
		rc = ckpt_open_plain(out, real, S_ISDIR(st.st_mode), how, err);
		goto out;
	}
	TRY_OUT(ckpt_load_manifest(&c, real, err));
	for (int i = 0; i < c->n_files; i++)
		TRY_OUT(ckpt_file_stat(c, i, err));
	if (stat(m, &st) == 0)
		c->saved_at = (double)st.st_mtime;
	*out = c;
	c = NULL;
out:
	vfm_ckpt_close(c);
	free(m);
	free(real);
	return rc;
}

bool vfm_ckpt_time_range(const struct vfm_ckpt *c, double t[2])
{
	const json_t *d = json_object_get(c->config, "diffusion"), *lo = json_object_get(d, "t_min"),
		     *hi = json_object_get(d, "t_max");

	t[0] = json_number_value(lo);
	t[1] = json_is_number(hi) ? json_number_value(hi) : 1;
	return lo || hi;
}

const struct vfm_ckpt_tensor *vfm_ckpt_find(const struct vfm_ckpt *c, const char *name)
{
	struct vfm_ckpt_tensor key = {.name = name};

	return c->n ? bsearch(&key, c->t, (size_t)c->n, sizeof(key), ckpt_tensor_cmp) : NULL;
}

static const struct vfm_ckpt_tensor *find_full(const struct vfm_ckpt *c, const char *part, const char *name)
{
	char *full = vfm_strfmt("%s/%s", part, name);
	const struct vfm_ckpt_tensor *t = vfm_ckpt_find(c, full);

	free(full);
	return t;
}

const struct vfm_ckpt_tensor *vfm_ckpt_find_in(const struct vfm_ckpt *c, const char *part, const char *name)
{
	const json_t *freeze = json_object_get(json_object_get(c->config, "train"), "freeze");
	const struct vfm_ckpt_tensor *t = c->plain ? vfm_ckpt_find(c, name) : find_full(c, part, name);

	return t || c->plain || strcmp(part, "ema") != 0 || !json_string_length(freeze) ? t
											: find_full(c, "model", name);
}

const char *vfm_ckpt_name_in(const struct vfm_ckpt *c, const char *part, const struct vfm_ckpt_tensor *t)
{
	size_t len = strlen(part);

	if (c->plain)
		return t->name;
	return !strncmp(t->name, part, len) && t->name[len] == '/' ? t->name + len + 1 : NULL;
}

bool vfm_ckpt_has_shape(const struct vfm_ckpt_tensor *t, int ndim, const int64_t *shape)
{
	return t->ndim == ndim && !memcmp(t->shape, shape, sizeof(*shape) * (size_t)ndim);
}

void vfm_ckpt_add_shape(struct vfm_buf *b, int ndim, const int64_t *shape)
{
	vfm_buf_adds(b, "[");
	for (int d = 0; d < ndim; d++)
		vfm_buf_addf(b, "%s%lld", d ? ", " : "", (long long)shape[d]);
	vfm_buf_adds(b, "]");
}

int vfm_ckpt_finite(const struct vfm_ckpt *c, struct vfm_err *err)
{
	for (int i = 0; i < c->n; i++)
		if (c->t[i].nonfinite)
			return vfm_fail(err, VFM_EUSAGE,
				"%s has %lld values that are NaN or infinite, the first of them in tensor '%s'",
				c->path, (long long)c->nonfinite, c->t[i].name);
	return 0;
}

/* ---- verified bytes ---- */

static int open_file(struct vfm_ckpt *c, int file, struct vfm_err *err)
{
	struct vfm_ckpt_file *f = &c->file[file];
	char *p;
	int rc = 0;

	if (f->fd >= 0)
		return 0;
	p = vfm_strfmt("%s/%s", c->path, f->name);
	f->fd = open(p, O_RDONLY | O_CLOEXEC);
	if (f->fd < 0)
		rc = vfm_fail_errno(err, ckpt_open_code(errno), "cannot open '%s'", p);
	free(p);
	c->damaged = c->damaged || rc == VFM_EUSAGE;
	return rc;
}

/* Sets the code of a message about damaged data. */
static int mark_damaged(struct vfm_ckpt *c, struct vfm_err *err)
{
	c->damaged = true;
	if (err)
		err->code = VFM_EUSAGE;
	return VFM_EUSAGE;
}

/* Loads a chunk into the least recently used slot and verifies its hash there.  Readers use only the verified copy, not
 * the file. */
static int get_chunk(struct vfm_ckpt *c, int file, int64_t chunk, const struct ckpt_slot **out, struct vfm_err *err)
{
	struct ckpt_priv *pv = c->priv;
	struct vfm_ckpt_file *f = &c->file[file];
	struct ckpt_slot *s = &pv->slot[0];
	uint64_t off = (uint64_t)chunk * (uint64_t)f->chunk_bytes;
	size_t len = (size_t)(f->bytes - off < (uint64_t)f->chunk_bytes ? f->bytes - off : (uint64_t)f->chunk_bytes);
	char hex[VFM_SHA256_HEX];
	int rc;

	for (int i = 0; i < 4; i++) {
		if (pv->slot[i].file == file && pv->slot[i].chunk == chunk) {
			pv->slot[i].used = ++pv->clock;
			*out = &pv->slot[i];
			return 0;
		}
		if (pv->slot[i].used < s->used)
			s = &pv->slot[i];
	}
	TRY(open_file(c, file, err));
	s->file = -1;
	if (s->cap < len) {
		s->buf = vfm_realloc(s->buf, len, 1);
		s->cap = len;
	}
	rc = vfm_full_pread(f->fd, s->buf, len, off, f->name, err);
	if (rc < 0) /* VFM_EINPUT: the file has become shorter since it was opened */
		return rc == VFM_EINPUT ? mark_damaged(c, err) : rc;
	if (f->chunks) {
		vfm_sha256_of(s->buf, len, hex);
		if (strcmp(hex, json_string_value(json_array_get(f->chunks, (size_t)chunk))) != 0) {
			vfm_fail(err, VFM_EUSAGE, "%s/%s is damaged: sha256 mismatch of bytes %llu to %llu", c->path,
				f->name, (unsigned long long)off, (unsigned long long)(off + len));
			return mark_damaged(c, err);
		}
	}
	s->file = file;
	s->chunk = chunk;
	s->used = ++pv->clock;
	*out = s;
	return 0;
}

static int fetch_verified(struct vfm_ckpt *c, int file, uint64_t off, size_t len, void *dst, struct vfm_err *err)
{
	uint64_t cb = (uint64_t)c->file[file].chunk_bytes;
	uint8_t *d = dst;

	if (off > c->file[file].bytes || len > c->file[file].bytes - off) {
		vfm_fail(err, VFM_EUSAGE, "%s/%s: truncated", c->path, c->file[file].name);
		return mark_damaged(c, err);
	}
	while (len) {
		const struct ckpt_slot *s;
		size_t in = (size_t)(off % cb), k = (size_t)(cb - in) < len ? (size_t)(cb - in) : len;

		TRY(get_chunk(c, file, (int64_t)(off / cb), &s, err));
		memcpy(d, s->buf + in, k);
		d += k;
		off += k;
		len -= k;
	}
	return 0;
}

/* Reads .st of a file on the first call. */
static int read_file_header(struct vfm_ckpt *c, int file, struct vfm_err *err)
{
	struct vfm_ckpt_file *f = &c->file[file];
	uint64_t need = 8;
	uint8_t *buf = NULL;
	char *what;
	int rc = 0;

	if (f->have_st)
		return 0;
	what = vfm_strfmt("%s/%s", c->path, f->name);
	do { /* reads 8 bytes, then the header; need is at most VFM_ST_MAX_HEADER + 8 and the file size */
		size_t len = (size_t)need;

		buf = vfm_realloc(buf, len, 1);
		rc = fetch_verified(c, file, 0, len, buf, err);
		if (!rc)
			rc = vfm_st_parse(&f->st, buf, len, f->bytes, what, &need, err);
		if (rc < 0 && need <= len)
			break;
	} while (rc < 0);
	f->have_st = rc == 0;
	c->damaged = c->damaged || rc == VFM_EUSAGE;
	free(buf);
	free(what);
	return rc;
}

int ckpt_piece_place(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_ckpt_piece *p, uint64_t *off,
	struct vfm_err *err)
{
	const struct vfm_ckpt_file *f = &c->file[p->file];
	const struct vfm_st_tensor *s;
	bool ok;

	TRY(read_file_header(c, p->file, err));
	s = vfm_st_find(&f->st, p->tensor);
	if (!s) {
		vfm_fail(err, VFM_EUSAGE, "%s/%s: the manifest lists tensor '%.200s', the file has none", c->path,
			f->name, p->tensor);
		return mark_damaged(c, err);
	}
	if (c->layout) { /* ckpt_translate has checked the shapes */
		*off = f->st.data + s->begin + (uint64_t)p->from * vfm_dtype_size(s->dtype);
		return 0;
	}
	ok = s->dtype == t->dtype && s->ndim == (p->is_range ? 1 : t->ndim);
	for (int d = 0; ok && d < s->ndim; d++)
		ok = s->shape[d] == (p->is_range ? p->numel : p->box.ext[d]);
	if (!ok) {
		vfm_fail(err, VFM_EUSAGE, "%s/%s: type or shape of tensor '%.200s' differs from the manifest", c->path,
			f->name, p->tensor);
		return mark_damaged(c, err);
	}
	*off = f->st.data + s->begin;
	return 0;
}

/* ---- reading ---- */

static enum vfm_dtype stored_dtype(const struct vfm_ckpt_tensor *t, const struct vfm_ckpt_piece *p)
{
	return p->scale ? p->stored : t->dtype;
}

/* Converts k elements, at most CONVERT_ELEMS, and multiplies them by a scale. */
static void convert_scaled(struct ckpt_priv *pv, float scale, enum vfm_dtype dtype, void *dst, enum vfm_dtype stored,
	const void *src, size_t k)
{
	float *x = pv->scaled ? pv->scaled : (pv->scaled = vfm_malloc(CONVERT_ELEMS * sizeof(*x)));

	vfm_dtype_convert(VFM_F32, x, stored, src, k);
	for (size_t i = 0; i < k; i++)
		x[i] *= scale;
	vfm_dtype_convert(dtype, dst, VFM_F32, x, k);
}

static int copy_run(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_ckpt_piece *p, uint64_t at,
	int64_t n, enum vfm_dtype dtype, uint8_t *dst, struct vfm_err *err)
{
	struct ckpt_priv *pv = c->priv;
	const enum vfm_dtype stored = stored_dtype(t, p);
	size_t ss = vfm_dtype_size(stored), ds = vfm_dtype_size(dtype);

	if (dtype == stored && !p->scale)
		return fetch_verified(c, p->file, at, (size_t)n * ss, dst, err);
	if (!pv->tmp)
		pv->tmp = vfm_malloc(CONVERT_ELEMS * 8);
	while (n > 0) {
		size_t k = n < CONVERT_ELEMS ? (size_t)n : CONVERT_ELEMS;

		TRY(fetch_verified(c, p->file, at, k * ss, pv->tmp, err));
		if (p->scale)
			convert_scaled(pv, p->scale, dtype, dst, stored, pv->tmp, k);
		else
			vfm_dtype_convert(dtype, dst, stored, pv->tmp, k);
		dst += k * ds;
		at += k * ss;
		n -= (int64_t)k;
	}
	return 0;
}

int ckpt_slice_runs(const struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *s,
	struct vfm_runs *r, struct vfm_err *err)
{
	int64_t n = s && s->part ? vfm_part_numel(s->part) : t->numel, a = s ? s->a : 0, b = s && s->b ? s->b : n;
	bool ok = a >= 0 && a <= b && b <= n;

	if (s && s->part)
		ok = ok && vfm_ckpt_has_shape(t, s->part->ndim, s->part->global);
	if (!ok)
		return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%.200s': the requested slice does not match its shape",
			c->path, t->name);
	if (s && s->part)
		vfm_runs_add_part(r, s->part, a, b);
	else
		vfm_runs_add_range(r, a, b, 0);
	return 0;
}

int ckpt_read_stored(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	enum vfm_dtype dtype, void *dst, struct vfm_err *err)
{
	struct vfm_runs want = {0}, have = {0}, plan = {0};
	size_t ds = vfm_dtype_size(dtype);
	int rc = ckpt_slice_runs(c, t, slice, &want, err);

	for (int i = 0; i < t->n_pieces && !rc && want.n; i++) {
		const struct vfm_ckpt_piece *p = &t->piece[i];
		const size_t es = vfm_dtype_size(stored_dtype(t, p));
		int64_t lo = want.v[0].from, hi = want.v[want.n - 1].from + want.v[want.n - 1].n;
		uint64_t off;

		vfm_runs_clear(&have);
		vfm_runs_clear(&plan);
		if (p->is_range)
			vfm_runs_add_range(&have, p->a, p->b, 0);
		else
			vfm_runs_add_box(&have, t->shape, &p->box, 0, lo, hi);
		if (!vfm_runs_plan(&have, &want, &plan))
			continue;
		rc = ckpt_piece_place(c, t, p, &off, err);
		for (size_t k = 0; k < plan.n && !rc; k++)
			rc = copy_run(c, t, p, off + (uint64_t)plan.v[k].from * es, plan.v[k].n, dtype,
				(uint8_t *)dst + (size_t)plan.v[k].to * ds, err);
	}
	if (rc < 0)
		vfm_err_context(err, "tensor '%.200s'", t->name);
	vfm_runs_release(&plan);
	vfm_runs_release(&have);
	vfm_runs_release(&want);
	return rc;
}

int vfm_ckpt_read_tensor(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t, const struct vfm_slice *slice,
	enum vfm_dtype dtype, void *dst, struct vfm_err *err)
{
	return c->priv->adapters ? ckpt_read_adapted(c, t, slice, dtype, dst, err)
				 : ckpt_read_stored(c, t, slice, dtype, dst, err);
}
