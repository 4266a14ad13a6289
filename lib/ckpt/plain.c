/* Opens safetensors and .pth files as a struct vfm_ckpt: one file, or a directory with an index
 * (model.safetensors.index.json: {"weight_map": {TENSOR: FILE}}). */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/ckpt_impl.h"
#include "ckpt/pth.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"

enum { MAX_FILES = 10000 };

const char *ckpt_plain_name(const char *dir)
{
	static const char *const names[] = {CKPT_INDEX, CKPT_STEM_FOREIGN ".safetensors.index.json",
		CKPT_STEM_FOREIGN ".safetensors", CKPT_STEM_FOREIGN ".bin.index.json", CKPT_STEM_FOREIGN ".bin"};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (ckpt_has_file(dir, names[i]))
			return names[i];
	return NULL;
}

static bool is_text_byte(char c)
{
	return isprint((unsigned char)c) || isspace((unsigned char)c);
}

int ckpt_refuse_text(int fd, uint64_t bytes, const char *name, struct vfm_err *err)
{
	char head[65] = {0};
	size_t len = bytes < 64 ? (size_t)bytes : 64, n = 0, line;
	const char *placeholder;

	TRY(vfm_full_pread(fd, head, len, 0, name, err));
	placeholder = vfm_placeholder(head, len);
	if (placeholder)
		return vfm_fail(err, VFM_EUSAGE, "%s: %s", name, placeholder);
	while (n < len && is_text_byte(head[n]))
		n++;
	if (!n || (n < 8 && n < len)) /* the formats of weights begin with at most 7 of them */
		return 0;
	line = strcspn(head, "\r\n");
	return vfm_fail(err, VFM_EUSAGE, "%s: not a safetensors file, but a text: '%.*s'", name,
		(int)(line < n ? line : n), head);
}

int ckpt_open_header(struct vfm_st *st, int fd, uint64_t bytes, const char *name, struct vfm_err *err)
{
	uint8_t head[16] = {0};
	size_t len = bytes < sizeof(head) ? (size_t)bytes : sizeof(head);

	TRY(ckpt_refuse_text(fd, bytes, name, err));
	TRY(vfm_full_pread(fd, head, len, 0, name, err));
	if (vfm_pth_is(head, len))
		return vfm_pth_open(st, fd, bytes, name, err);
	if (head[0] == 0x80 && head[1] == 2 && head[8] != '{')
		return vfm_fail(
			err, VFM_EUSAGE, "%s: a file of PyTorch before 1.6; save it again with a newer one", name);
	return vfm_st_open(st, fd, bytes, name, err);
}

/* Opens file i of c at `path` and reads its header. */
static int open_one(struct vfm_ckpt *c, int i, const char *name, const char *path, struct vfm_err *err)
{
	struct vfm_ckpt_file *f = &c->file[i];
	struct stat st;

	*f = (struct vfm_ckpt_file){.name = name, .chunk_bytes = CKPT_CHUNK};
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* does not wait for the writer of a FIFO */
	c->n_files = i + 1;
	if (f->fd < 0 || fstat(f->fd, &st) != 0)
		return vfm_fail_errno(err, ckpt_open_code(errno), "cannot open '%s'", path);
	if (!S_ISREG(st.st_mode))
		return vfm_fail(err, VFM_EUSAGE, "%s: neither a checkpoint nor a safetensors file", path);
	f->bytes = (uint64_t)st.st_size;
	c->bytes += st.st_size;
	if ((double)st.st_mtime > c->saved_at)
		c->saved_at = (double)st.st_mtime;
	TRY(ckpt_open_header(&f->st, f->fd, f->bytes, path, err));
	f->have_st = true;
	return 0;
}

static void add_tensors(struct vfm_ckpt *c, int file)
{
	const struct vfm_st *st = &c->file[file].st;

	c->t = vfm_realloc(c->t, (size_t)c->n + st->n + 1, sizeof(*c->t));
	for (size_t i = 0; i < st->n; i++) {
		const struct vfm_st_tensor *s = &st->t[i];
		struct vfm_ckpt_tensor *t = &c->t[c->n++];

		*t = (struct vfm_ckpt_tensor){.name = s->name, .dtype = s->dtype, .ndim = s->ndim, .n_pieces = 1};
		memcpy(t->shape, s->shape, sizeof(t->shape));
		t->bytes = (int64_t)(s->end - s->begin);
		t->numel = t->bytes / (int64_t)vfm_dtype_size(t->dtype);
		t->piece = vfm_arena_alloc(&c->priv->arena, sizeof(*t->piece));
		t->piece[0] = (struct vfm_ckpt_piece){
			.file = file, .tensor = s->name, .box = vfm_box_full(t->ndim, t->shape), .numel = t->numel};
	}
}

int ckpt_read_meta(const struct vfm_ckpt *c, const char *key, json_t **out, char **where, struct vfm_err *err)
{
	const struct vfm_st *st = &c->file[0].st;
	size_t i = 0;

	*out = NULL;
	*where = vfm_strfmt("%s: __metadata__.%s", c->path, key);
	while (i < st->n_meta && strcmp(st->meta[i].key, key) != 0)
		i++;
	if (i == st->n_meta)
		return 0;
	*out = vfm_json_parse(st->meta[i].value, strlen(st->meta[i].value), *where, err);
	return *out ? 0 : VFM_EUSAGE;
}

/* Sets c->state from the metadata of the first file, where vfm_ckpt_export wrote it; all files have the same. */
static int read_plain_state(struct vfm_ckpt *c, struct vfm_err *err)
{
	char *where;
	int rc = ckpt_read_meta(c, CKPT_META_STATE, &c->priv->state, &where, err);

	free(where);
	c->state = c->priv->state;
	return rc;
}

/* ---- the range of t ---- */

/* Sets *range to [t_min, t_max], a new reference, if the metadata have it. */
static int read_range_meta(const struct vfm_ckpt *c, json_t **range, struct vfm_err *err)
{
	char *where;
	int rc = ckpt_read_meta(c, CKPT_META_RANGE, range, &where, err);
	const json_t *first = json_array_get(*range, 0), *last = json_array_get(*range, 1);
	const double lo = json_number_value(first), hi = json_number_value(last);

	if (*range &&
		(json_array_size(*range) != 2 || !json_is_number(first) || !json_is_number(last) ||
			!(lo >= 0 && lo < hi && hi <= 1))) {
		rc = vfm_fail(err, VFM_EUSAGE, "%s: expected [t_min, t_max]", where);
		json_decref(*range);
		*range = NULL;
	}
	free(where);
	return rc;
}

/* A folder of diffusers: the networks of Wan 2.2 are DIR/transformer for t of at least boundary_ratio of
 * DIR/model_index.json, and DIR/transformer_2 below. */
static json_t *read_boundary(const char *folder)
{
	char *real = realpath(folder, NULL), *slash = real ? strrchr(real, '/') : NULL,
	     *path = slash ? vfm_strfmt("%.*s/model_index.json", (int)(slash - real), real) : NULL;
	json_t *index = path && access(path, R_OK) == 0 ? vfm_json_load_regular(path, 1 << 20, NULL) : NULL,
	       *range = NULL;
	double b = json_number_value(json_object_get(index, "boundary_ratio"));

	if (b > 0 && b < 1 && !strcmp(slash, "/transformer"))
		range = json_pack("[f,f]", b, 1.0);
	else if (b > 0 && b < 1 && !strcmp(slash, "/transformer_2"))
		range = json_pack("[f,f]", 0.0, b);
	json_decref(index);
	free(path);
	free(real);
	return range;
}

/* Adds the range of t that the files record to the configuration of c. */
static int read_time_range(struct vfm_ckpt *c, const char *folder, struct vfm_err *err)
{
	struct ckpt_priv *pv = c->priv;
	json_t *range = NULL, *diffusion;

	TRY(read_range_meta(c, &range, err));
	if (!range)
		range = read_boundary(folder);
	if (!range)
		return 0;
	if (!pv->config)
		pv->config = json_pack("{s:{s:s}}", "diffusion", "kind", "flow"); /* only flow has a t */
	c->config = pv->config;
	diffusion = json_object_get(pv->config, "diffusion");
	json_object_set(diffusion, "t_min", json_array_get(range, 0));
	json_object_set(diffusion, "t_max", json_array_get(range, 1));
	json_decref(range);
	return 0;
}

/* ---- an index ---- */

static int string_cmp(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Lists the files of the weight map, without duplicates. */
static int list_files(const json_t *map, const char *what, const char ***out, int *n, struct vfm_err *err)
{
	const char **v = vfm_calloc(json_object_size(map) + 1, sizeof(*v)), *name;
	size_t k = 0, m = 0;
	json_t *file;
	int rc = 0;

	json_object_foreach((json_t *)(uintptr_t)map, name, file)
	{
		const char *s = json_string_value(file);

		if (!s || !s[0] || s[0] == '.' || strchr(s, '/') || strlen(s) > 255)
			rc = vfm_fail(
				err, VFM_EUSAGE, "%s: weight_map.%.200s: expected the name of a file", what, name);
		v[k++] = s ? s : "";
	}
	qsort(v, k, sizeof(*v), string_cmp);
	for (size_t i = 0; i < k; i++)
		if (!m || strcmp(v[m - 1], v[i]) != 0)
			v[m++] = v[i];
	if (!rc && (!m || m > MAX_FILES))
		rc = vfm_fail(err, VFM_EUSAGE, "%s: %zu files, expected 1 to %d", what, m, MAX_FILES);
	*out = v;
	*n = (int)m;
	return rc;
}

/* Checks that index and headers list the same tensors in the same files. */
static int compare_map(const struct vfm_ckpt *c, const json_t *map, const char *what, struct vfm_err *err)
{
	const char *name;
	json_t *file;

	for (int i = 0; i < c->n; i++) {
		const char *in = c->file[c->t[i].piece->file].name,
			   *said = json_string_value(json_object_get(map, c->t[i].name));

		if (!said || strcmp(said, in) != 0)
			return vfm_fail(err, VFM_EUSAGE, "%s: tensor '%.200s' of %s %s", what, c->t[i].name, in,
				said ? "is listed in another file" : "is not listed");
	}
	json_object_foreach((json_t *)(uintptr_t)map, name, file) if (!vfm_ckpt_find(c, name)) return vfm_fail(
		err, VFM_EUSAGE, "%s: no tensor '%.200s' in %s", what, name, json_string_value(file));
	return 0;
}

static int open_index(struct vfm_ckpt *c, const char *index, struct vfm_err *err)
{
	struct ckpt_priv *pv = c->priv;
	char *what = vfm_strfmt("%s/%s", c->path, index), *path = NULL;
	const char **names = NULL;
	const json_t *map;
	int n = 0, rc = 0;

	pv->root = vfm_json_load(what, CKPT_MAX_MANIFEST, err);
	map = json_object_get(pv->root, "weight_map");
	if (!pv->root)
		rc = err ? err->code : VFM_EUSAGE;
	else if (!json_is_object(map))
		rc = vfm_fail(err, VFM_EUSAGE, "%s: weight_map: expected an object", what);
	if (!rc)
		rc = list_files(map, what, &names, &n, err);
	if (rc < 0)
		goto out;
	c->file = vfm_calloc((size_t)n, sizeof(*c->file));
	for (int i = 0; i < n; i++) {
		free(path);
		path = vfm_strfmt("%s/%s", c->path, names[i]);
		TRY_OUT(open_one(c, i, names[i], path, err));
		add_tensors(c, i);
	}
	qsort(c->t, (size_t)c->n, sizeof(*c->t), ckpt_tensor_cmp);
	for (int i = 1; i < c->n; i++)
		if (!strcmp(c->t[i - 1].name, c->t[i].name)) {
			rc = vfm_fail(err, VFM_EUSAGE, "%s: tensor '%.200s' is in two files", what, c->t[i].name);
			goto out;
		}
	rc = compare_map(c, map, what, err);
out:
	free(names);
	free(path);
	free(what);
	return rc;
}

/* Opens the file `name` of the directory c->path; name NULL: c->path is the file. */
static int open_single(struct vfm_ckpt *c, const char *name, struct vfm_err *err)
{
	char *path = name ? vfm_strfmt("%s/%s", c->path, name) : vfm_strdup(c->path);
	int rc;

	c->file = vfm_calloc(1, sizeof(*c->file));
	rc = open_one(c, 0, name ? name : c->path, path, err);
	free(path);
	if (rc < 0)
		return rc;
	add_tensors(c, 0);
	qsort(c->t, (size_t)c->n, sizeof(*c->t), ckpt_tensor_cmp);
	return 0;
}

int ckpt_open_plain(
	struct vfm_ckpt **out, const char *path, bool dir, const struct vfm_ckpt_how *how, struct vfm_err *err)
{
	struct vfm_ckpt *c = ckpt_new(path);
	const char *name = dir ? ckpt_plain_name(path) : NULL;
	char *folder;
	int rc;

	c->plain = true;
	c->step = c->nonfinite = -1;
	c->world = 1;
	if (dir && !name)
		rc = vfm_fail(
			err, VFM_EUSAGE, "no complete checkpoint in '%s', and no .safetensors or .pth file", path);
	else
		rc = name && strstr(name, ".index.json") ? open_index(c, name, err) : open_single(c, name, err);
	if (!rc && !c->n)
		rc = vfm_fail(err, VFM_EUSAGE, "%s: no tensors", path);
	if (!rc)
		rc = read_plain_state(c, err);
	if (!rc && !(how && how->raw)) {
		folder = dir ? vfm_strdup(c->path) : vfm_dir_of(c->path);
		rc = ckpt_translate(c, folder, how ? how->model : NULL, err);
		if (!rc)
			rc = read_time_range(c, folder, err);
		free(folder);
	}
	if (rc < 0) {
		vfm_ckpt_close(c);
		return rc;
	}
	*out = c;
	return 0;
}
