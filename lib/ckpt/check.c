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

/* Appends " (tensor 'a', 'b' and 3 more)": the tensors with data in bytes [lo, hi) of a file. */
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
	char *path = f->name == c->path ? vfm_strdup(c->path) : vfm_strfmt("%s/%s", c->path, f->name),
	     hex[VFM_SHA256_HEX];
	struct vfm_sha256 *all = vfm_sha256_new();
	uint8_t *buf = vfm_malloc((size_t)f->chunk_bytes);
	int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0, bad = 0;

	if (fd < 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot open '%s'", path);
	for (uint64_t off = 0; off < f->bytes && !rc; off += (uint64_t)f->chunk_bytes) {
		size_t len =
			(size_t)(f->bytes - off < (uint64_t)f->chunk_bytes ? f->bytes - off : (uint64_t)f->chunk_bytes);
		struct vfm_buf text = {0};

		rc = vfm_full_pread(fd, buf, len, off, path, err);
		if (rc < 0 || !f->chunks)
			continue;
		vfm_sha256_add(all, buf, len);
		vfm_sha256_of(buf, len, hex);
		if (!strcmp(hex,
			    json_string_value(json_array_get(f->chunks, (size_t)(off / (uint64_t)f->chunk_bytes)))))
			continue;
		bad++;
		vfm_buf_addf(&text, "%s: bytes %llu to %llu: sha256 mismatch", path, (unsigned long long)off,
			(unsigned long long)(off + len));
		name_tensors(c, file, off, off + len, &text);
		fault(fl, text.data);
		vfm_buf_release(&text);
	}
	vfm_sha256_end(all, hex);
	if (!rc && !bad && f->sha256 && strcmp(hex, f->sha256) != 0) {
		char *text = vfm_strfmt("%s: sha256 mismatch of the file", path);

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
			if (!file_bad[c->t[i].piece[k].file] &&
				ckpt_piece_place(c, &c->t[i], &c->t[i].piece[k], &off, &e) < 0)
				fault(fl, e.msg);
}

int vfm_ckpt_check(const char *path, void (*fn)(void *ctx, const char *what), void *ctx, struct vfm_err *err)
{
	struct faults fl = {fn, ctx, 0};
	struct vfm_ckpt *c = NULL;
	struct vfm_err e = {0};
	char *real = NULL, *manifest;
	struct stat st;
	bool *bad = NULL;
	int rc;

	TRY(vfm_ckpt_resolve(path, &real, err));
	manifest = vfm_strfmt("%s/%s", real, CKPT_MANIFEST);
	if (stat(manifest, &st) == 0)
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
	free(manifest);
	free(real);
	vfm_ckpt_close(c);
	return rc < 0 ? rc : fl.n;
}

int vfm_ckpt_sha256(const struct vfm_ckpt *c, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	struct vfm_sha256 *all;
	char one[VFM_SHA256_HEX];
	char *path = vfm_strfmt("%s/%s", c->path, CKPT_MANIFEST);
	int rc;

	if (!c->plain || !strcmp(c->file[0].name, c->path)) { /* a manifest, or a single file */
		rc = vfm_sha256_file(c->plain ? c->path : path, hex, err);
		free(path);
		return rc;
	}
	rc = 0;
	all = vfm_sha256_new();
	for (int i = 0; i < c->n_files && rc == 0; i++) {
		free(path);
		path = vfm_strfmt("%s/%s", c->path, c->file[i].name);
		rc = vfm_sha256_file(path, one, err);
		vfm_sha256_add(all, one, VFM_SHA256_HEX - 1);
		vfm_sha256_add(all, "  ", 2);
		vfm_sha256_add(all, c->file[i].name, strlen(c->file[i].name));
		vfm_sha256_add(all, "\n", 1);
	}
	vfm_sha256_end(all, hex);
	free(path);
	return rc;
}
