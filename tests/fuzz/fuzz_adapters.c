/* Files of adapters for a tiny Wan.  The input has two of them, separated by an empty line; a line is "NAME DIM ..." for a
 * tensor, or the metadata of diffusers, which begin with '{'.  A file that is refused leaves nothing behind, and slices
 * have the values of whole tensors. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "ckpt/adapters.h"
#include "ckpt/safetensors.h"
#include "io/json.h"
#include "spec/model/foreign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64];

static void clean(void)
{
	char path[128];

	snprintf(path, sizeof(path), "rm -rf '%s'", dir);
	if (system(path))
		fprintf(stderr, "%s is left behind\n", dir);
}

static int put_values(void *ctx, const struct vfm_st_tensor *t, FILE *f, struct vfm_err *err)
{
	const int64_t n = vfm_shape_numel(t->ndim, t->shape);

	for (int64_t i = 0; i < n; i++) {
		const float x = (float)((i * 7 + (int64_t)t->name[strlen(t->name) - 1]) % 13 + 1) / 16;
		int rc = vfm_st_put_bytes(ctx, &x, sizeof(x), f, err);

		if (rc < 0)
			return rc;
	}
	return 0;
}

static void write_base(const char *path)
{
	struct vfm_model_spec m;
	struct vfm_foreign_map map;
	struct vfm_st_tensor *t;
	struct vfm_buf text = {0};
	struct vfm_err err;
	json_t *model;

	vfm_foreign_begin(&m, vfm_arch_find("wan"));
	m.patch[0] = 1;
	m.patch[1] = m.patch[2] = 2;
	m.layers = 1;
	m.hidden = 16;
	m.heads = 1;
	m.ffn = 24;
	m.channels = 2;
	m.text_dim = 6;
	m.text_len = 8;
	if (vfm_model_check(&m, &err) < 0) {
		fprintf(stderr, "%s\n", err.msg);
		abort();
	}
	model = vfm_model_json(&m);
	vfm_json_text(&text, model, 0);
	json_decref(model);
	memset(&map, 0, sizeof(map));
	vfm_foreign_expand(&map, &m, 1);
	t = vfm_calloc((size_t)map.n_theirs, sizeof(*t));
	for (int i = 0; i < map.n_theirs; i++) {
		t[i] = (struct vfm_st_tensor){.name = map.theirs[i].name, .dtype = VFM_F32, .ndim = map.theirs[i].ndim};
		memcpy(t[i].shape, map.theirs[i].shape, sizeof(t[i].shape));
	}
	if (vfm_st_write(path, t, (size_t)map.n_theirs, (const char *[1][2]){{"vfm.model", text.data}}, 1, put_values,
		    dir, &err) < 0)
		abort();
	vfm_buf_release(&text);
	free(t);
	vfm_foreign_map_release(&map);
}

static bool is_utf8(const char *s)
{
	json_t *v = json_string(s);

	json_decref(v);
	return v != NULL;
}

/* Reads a tensor from a line; returns whether it has a name of UTF-8 and few elements. */
static bool read_line(char *line, struct vfm_st_tensor *t)
{
	char *save = NULL, *word = strtok_r(line, " ", &save);
	int64_t n = 1;

	*t = (struct vfm_st_tensor){.name = word, .dtype = VFM_F32};
	while (word && (word = strtok_r(NULL, " ", &save)) != NULL && t->ndim < 5) {
		t->shape[t->ndim++] = strtol(word, NULL, 10) & 63;
		n *= t->shape[t->ndim - 1];
	}
	return t->name && is_utf8(t->name) && n <= 4096;
}

/* Writes a file of the lines; returns false if they do not make one. */
static bool write_adapters(char *lines, const char *path)
{
	struct vfm_st_tensor *t = vfm_calloc(strlen(lines) + 1, sizeof(*t));
	const char *meta[1][2] = {{"lora_adapter_metadata", NULL}};
	struct vfm_err err = {0};
	char *save = NULL;
	size_t n = 0;
	bool ok;

	for (char *line = strtok_r(lines, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (*line == '{' && is_utf8(line))
			meta[0][1] = line;
		else
			n += read_line(line, &t[n]);
	}
	ok = vfm_st_write(path, t, n, meta, meta[0][1] != NULL, put_values, dir, &err) == 0;
	free(t);
	return ok;
}

static bool attach(struct vfm_ckpt *c, const char *path, bool skip)
{
	struct vfm_err err = {0};
	int rc = vfm_ckpt_attach(
		c, &(struct vfm_attach){.path = path, .part = "model", .scale = .5, .skip_missing = skip}, &err);

	if (rc < 0 && !err.msg[0])
		abort();
	return rc == 0;
}

static float *read_all(struct vfm_ckpt *c, const struct vfm_ckpt_tensor *t)
{
	float *x = vfm_calloc((size_t)t->numel + 1, sizeof(*x));
	struct vfm_err err = {0};

	if (vfm_ckpt_read_tensor(c, t, NULL, VFM_F32, x, &err) < 0)
		abort();
	return x;
}

/* Compares the tensors of two models, the second one in slices. */
static void compare(struct vfm_ckpt *a, struct vfm_ckpt *b)
{
	for (int i = 0; i < a->n; i++) {
		const struct vfm_ckpt_tensor *t = &a->t[i];
		float *x = read_all(a, t), part[64];

		for (int64_t at = 0; at < t->numel; at += 61) {
			struct vfm_slice s = {.a = at, .b = at + 61 < t->numel ? at + 61 : t->numel};
			struct vfm_err err = {0};

			if (vfm_ckpt_read_tensor(b, &b->t[i], &s, VFM_F32, part, &err) < 0)
				abort();
			for (int64_t k = s.a; k < s.b; k++)
				if (fabsf(x[k] - part[k - s.a]) > 1e-5F * (1 + fabsf(x[k])))
					abort();
		}
		free(x);
	}
}

static void train(struct vfm_ckpt *base, const char *path)
{
	struct vfm_ckpt *c = NULL;
	struct vfm_err err = {0};
	int64_t rank;
	double alpha;

	if (vfm_ckpt_open_adapters(&c, base, &(struct vfm_attach){.path = path, .part = "model", .scale = 1}, &rank,
		    &alpha, &err) < 0) {
		if (!err.msg[0])
			abort();
		return;
	}
	if (rank < 1 || !(alpha > 0))
		abort();
	for (int i = 0; i < c->n; i++)
		free(read_all(c, &c->t[i]));
	vfm_ckpt_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = vfm_calloc(size + 1, 1), *second, path[3][96];
	struct vfm_ckpt *both, *one;
	struct vfm_err err;

	if (!dir[0]) {
		snprintf(dir, sizeof(dir), "%s/vfm-fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
		if (!mkdtemp(dir))
			abort();
		atexit(clean);
		vfm_log_set_thread_silent(true);
	}
	for (int i = 0; i < 3; i++)
		snprintf(path[i], sizeof(path[i]), "%s/%d.safetensors", dir, i);
	if (access(path[2], F_OK) != 0)
		write_base(path[2]);
	memcpy(text, data, size);
	second = strstr(text, "\n\n");
	if (second)
		*second = 0;
	if (write_adapters(text, path[0]) && write_adapters(second ? second + 2 : text + size, path[1])) {
		if (vfm_ckpt_open(&both, path[2], &err) < 0 || vfm_ckpt_open(&one, path[2], &err) < 0)
			abort();
		train(one, path[0]);
		if (attach(both, path[0], size & 1))
			attach(one, path[0], size & 1);
		attach(both, path[1], false);
		attach(one, path[1], false);
		compare(both, one);
		vfm_ckpt_close(both);
		vfm_ckpt_close(one);
	}
	free(text);
	return 0;
}
