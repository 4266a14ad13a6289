#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "ckpt/ckpt_impl.h"

struct faults {
	void (*fn)(void *ctx, const char *what);
	void *ctx;
	int n;
};

static void fault(struct faults *f, const char *what)
{
	f->n++;
	if (f->fn)
		f->fn(f->ctx, what);
}

/* "tensor 'a', 'b' and 3 more": whose data lies in bytes [lo, hi) of a file. */
static void name_tensors(struct vfm_ckpt *c, int file, uint64_t lo, uint64_t hi, struct vfm_buf *out)
{
	const struct vfm_ckpt_file *f = &c->file[file];
	struct vfm_err ignore;
	int named = 0, more = 0;

	if (ckpt_file_header(c, file, &ignore) < 0) {
		vfm_buf_adds(out, " (the header)");
		return;
	}
	for (int i = 0; i < c->n; i++) {
		for (int k = 0; k < c->t[i].n_pieces; k++) {
			const struct vfm_ckpt_piece *p = &c->t[i].piece[k];
			const struct vfm_st_tensor *s = p->file == file ? vfm_st_find(&f->st, p->tensor) : NULL;

			if (!s || f->st.data + s->end <= lo || f->st.data + s->begin >= hi)
				continue;
			if (named == 4)
				more++;
			else
				vfm_buf_addf(out, "%s'%.200s'", named++ ? ", " : " (tensor ", c->t[i].name);
			break;
		}
	}
	if (more)
		vfm_buf_addf(out, " and %d more", more);
	vfm_buf_adds(out, named ? ")" : lo < f->st.data ? " (the header)" : "");
}

static int check_bytes(struct vfm_ckpt *c, int file, struct faults *fl, struct vfm_err *err)
{
	const struct vfm_ckpt_file *f = &c->file[file];
	char *path = c->plain ? vfm_strdup(c->path) : vfm_strfmt("%s/%s", c->path, f->name), hex[VFM_SHA256_HEX];
	struct vfm_sha256 *all = vfm_sha256_new();
	uint8_t *buf = vfm_malloc((size_t)f->chunk_bytes);
	int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0, bad = 0;

	if (fd < 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", path);
	for (uint64_t off = 0; off < f->bytes && !rc; off += (uint64_t)f->chunk_bytes) {
		size_t len = (size_t)(f->bytes - off < (uint64_t)f->chunk_bytes ? f->bytes - off : (uint64_t)f->chunk_bytes);
		struct vfm_buf text = {0};

		rc = vfm_full_pread(fd, buf, len, off, path, err);
		if (rc < 0 || !f->chunks)
			continue;
		vfm_sha256_add(all, buf, len);
		vfm_sha256_of(buf, len, hex);
		if (!strcmp(hex, json_string_value(json_array_get(f->chunks, (size_t)(off / (uint64_t)f->chunk_bytes)))))
			continue;
		bad++;
		vfm_buf_addf(&text, "%s: bytes %llu to %llu do not have their sha256", path, (unsigned long long)off, (unsigned long long)(off + len));
		name_tensors(c, file, off, off + len, &text);
		fault(fl, text.data);
		vfm_buf_release(&text);
	}
	vfm_sha256_end(all, hex);
	if (!rc && !bad && f->sha256 && strcmp(hex, f->sha256) != 0) {
		char *text = vfm_strfmt("%s: the file has not its sha256", path);

		fault(fl, text);
		free(text);
	}
	if (fd >= 0)
		close(fd);
	free(buf);
	free(path);
	return rc;
}

static void check_places(struct vfm_ckpt *c, const bool *file_bad, struct faults *fl)
{
	struct vfm_err e;
	uint64_t off;

	for (int i = 0; i < c->n; i++)
		for (int k = 0; k < c->t[i].n_pieces; k++)
			if (!file_bad[c->t[i].piece[k].file] && ckpt_piece_place(c, &c->t[i], &c->t[i].piece[k], &off, &e) < 0)
				fault(fl, e.msg);
}

int vfm_ckpt_check(const char *path, void (*fn)(void *ctx, const char *what), void *ctx, struct vfm_err *err)
{
	struct faults fl = {fn, ctx, 0};
	struct vfm_ckpt *c = NULL;
	struct vfm_err e = {0};
	char *real = NULL;
	struct stat st;
	bool *bad = NULL;
	int rc;

	TRY(vfm_ckpt_resolve(path, &real, err));
	if (stat(real, &st) == 0 && S_ISDIR(st.st_mode))
		rc = ckpt_load_manifest(&c, real, &e);
	else
		rc = vfm_ckpt_open(&c, real, &e);
	if (rc == VFM_EUSAGE) {
		fault(&fl, e.msg);
		rc = 0;
	} else if (rc < 0 && err) {
		*err = e;
	}
	bad = vfm_calloc((size_t)(c ? c->n_files : 0) + 1, sizeof(*bad));
	for (int i = 0; c && i < c->n_files && !rc; i++) {
		int before = fl.n;

		if (!c->plain && ckpt_file_stat(c, i, &e) < 0)
			fault(&fl, e.msg);
		else
			rc = check_bytes(c, i, &fl, err);
		bad[i] = fl.n > before;
	}
	if (c && !rc)
		check_places(c, bad, &fl);
	free(bad);
	free(real);
	vfm_ckpt_close(c);
	return rc < 0 ? rc : fl.n;
}

/* ---- one file of a part ---- */

enum { BLOCK = 1 << 20 }; /* elements */

static int write_tensors(struct vfm_ckpt *c, const struct vfm_st_tensor *t, size_t n, size_t cut, const char *part, FILE *f,
	const char *out, struct vfm_err *err)
{
	uint8_t *buf = vfm_malloc((size_t)BLOCK * 8);
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		char *name = cut ? vfm_strfmt("%s/%s", part, t[i].name) : vfm_strdup(t[i].name);
		const struct vfm_ckpt_tensor *src = vfm_ckpt_find(c, name);

		for (int64_t a = 0; a < src->numel && !rc; a += BLOCK) {
			struct vfm_slice s = {.a = a, .b = a + BLOCK < src->numel ? a + BLOCK : src->numel};
			size_t es = vfm_dtype_size(src->dtype);

			rc = vfm_ckpt_read_tensor(c, src, &s, src->dtype, buf, err);
			if (!rc && fwrite(buf, es, (size_t)(s.b - s.a), f) != (size_t)(s.b - s.a))
				rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", out);
		}
		free(name);
	}
	free(buf);
	return rc;
}

int vfm_ckpt_consolidate(struct vfm_ckpt *c, const char *part, const char *out, struct vfm_err *err)
{
	struct vfm_st_tensor *t = vfm_calloc((size_t)c->n + 1, sizeof(*t));
	size_t n = 0, cut = c->plain ? 0 : strlen(part) + 1;
	struct vfm_atomic a = {0};
	struct vfm_buf head = {0};
	char step[32];
	const char *meta[2][2] = {{"format", "pt"}, {"vfm.step", step}};
	int rc = 0;

	snprintf(step, sizeof(step), "%lld", (long long)c->step);
	for (int i = 0; i < c->n; i++) {
		const struct vfm_ckpt_tensor *s = &c->t[i];

		if (cut && (strncmp(s->name, part, cut - 1) != 0 || s->name[cut - 1] != '/'))
			continue;
		t[n] = (struct vfm_st_tensor){.name = s->name + cut, .dtype = s->dtype, .ndim = s->ndim};
		memcpy(t[n++].shape, s->shape, sizeof(s->shape));
	}
	if (!n) {
		rc = vfm_fail(err, VFM_EUSAGE, "%s: no tensors of part '%s'", c->path, part);
		goto out;
	}
	vfm_st_layout(t, n, meta, c->plain ? 1 : 2, &head);
	if (head.len - 8 > VFM_ST_MAX_HEADER) {
		rc = vfm_fail(err, VFM_EUSAGE, "%s: too many tensors for one file", c->path);
		goto out;
	}
	TRY_OUT(vfm_atomic_open(&a, out, err));
	if (fwrite(head.data, 1, head.len, a.f) != head.len) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", out);
		goto out;
	}
	TRY_OUT(write_tensors(c, t, n, cut, part, a.f, out, err));
	rc = vfm_atomic_commit(&a, err);
out:
	vfm_atomic_abort(&a);
	vfm_buf_release(&head);
	free(t);
	return rc;
}
