/* Any bytes as the configuration of a video autoencoder, after a '#' of a text encoder, or after a '@' of a vision
 * tower (with the image processor as its key "processor"), and any tensors (after a NUL: lines of a name and a shape),
 * from which a release without configuration is told.  The weights fit whatever the models ask for, as far as the
 * listed tensors allow, so that accepted sizes also run: a clip becomes as many finite latents as the geometry says and
 * as many pictures again, texts and pictures become rows. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "ckpt/weights.h"
#include "device/cpu/cpu.h"
#include "encoder/image/clip_vision.h"
#include "encoder/text/t5.h"
#include "encoder/vae/vae.h"
#include "io/file.h"
#include "io/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TENSORS_MAX = 4096, NAME_MAX_BYTES = 160, WEIGHTS_MAX = 1 << 18 /* elements of all tensors */ };

static void must(bool ok)
{
	if (!ok)
		abort();
}

/* ---- weights.h, without files ---- */

struct vfm_weights {
	json_t *config;
	struct vfm_weight t[TENSORS_MAX];
	char names[TENSORS_MAX][NAME_MAX_BYTES];
	int n;
	int64_t numel;
	bool misfit;
	float *data;     /* [WEIGHTS_MAX], of all tensors ... */
	float *positive; /* ... but of deviations */
};
static struct vfm_weights all;

static struct vfm_weight *add_tensor(const char *name, int ndim, const int64_t *shape)
{
	struct vfm_weight *t = &all.t[all.n];
	int64_t numel = 1;

	if (all.n == TENSORS_MAX || strlen(name) >= NAME_MAX_BYTES)
		return NULL;
	for (int i = 0; i < ndim; i++)
		if (shape[i] < 0 || (shape[i] && numel > WEIGHTS_MAX / shape[i]))
			return NULL;
		else
			numel *= shape[i];
	all.numel += numel;
	if (all.numel > WEIGHTS_MAX)
		return NULL;
	*t = (struct vfm_weight){.name = strcpy(all.names[all.n], name),
		.dtype = VFM_F32,
		.ndim = ndim,
		.numel = numel,
		.data = strstr(name, "std") ? all.positive : all.data};
	memcpy(t->shape, shape, (size_t)ndim * sizeof(*shape));
	all.n++;
	return t;
}

/* A line: a name and up to 5 sizes. */
static void list_tensor(char *line)
{
	char *rest, *name = strtok_r(line, " ", &rest), *at;
	int64_t shape[5];
	int n = 0;

	for (; n < 5 && (at = strtok_r(NULL, " ", &rest)); n++)
		shape[n] = strtoll(at, NULL, 10);
	if (name && n && !vfm_weights_has(&all, name))
		add_tensor(name, n, shape);
}

int vfm_weights_open(struct vfm_weights **w, const char *path, struct vfm_err *err)
{
	(void)path;
	(void)err;
	*w = &all;
	return 0;
}

char *vfm_weights_within(const char *path, const char *const *names)
{
	(void)names;
	return vfm_strdup(path);
}

void vfm_weights_close(struct vfm_weights *w)
{
	(void)w;
}

const char *vfm_weights_path(const struct vfm_weights *w)
{
	(void)w;
	return "fuzz";
}

const json_t *vfm_weights_config(const struct vfm_weights *w)
{
	return w->config;
}

const struct vfm_weight *vfm_weights_find(const struct vfm_weights *w, const char *name)
{
	for (int i = 0; i < w->n; i++)
		if (!strcmp(w->t[i].name, name))
			return &w->t[i];
	return NULL;
}

const struct vfm_weight *vfm_weights_want(
	struct vfm_weights *w, int ndim, const int64_t *shape, const char *format, ...)
{
	const struct vfm_weight *t;
	char name[512];
	va_list ap;

	va_start(ap, format);
	vsnprintf(name, sizeof(name), format, ap);
	va_end(ap);
	t = vfm_weights_find(w, name);
	if (!t && !w->misfit)
		t = add_tensor(name, ndim, shape);
	if (!t || t->ndim != ndim || memcmp(t->shape, shape, (size_t)ndim * sizeof(*shape)) != 0)
		w->misfit = true;
	return w->misfit ? NULL : t;
}

void vfm_weights_ignore(struct vfm_weights *w, const char *prefix)
{
	(void)w;
	(void)prefix;
}

int vfm_weights_check(struct vfm_weights *w, const char *what, struct vfm_err *err)
{
	return w->misfit ? vfm_fail(err, VFM_EUSAGE, "not the weights of %s", what) : 0;
}

void vfm_weight_to_f32(const struct vfm_weight *t, float *dst)
{
	memcpy(dst, t->data, (size_t)t->numel * sizeof(*dst));
}

void vfm_weight_drop_pages(const struct vfm_weight *t)
{
	(void)t;
}

int vfm_weights_metadata(const struct vfm_weights *w, const char *key, json_t **out, struct vfm_err *err)
{
	(void)w;
	(void)key;
	(void)err;
	*out = NULL;
	return 0;
}

int vfm_weights_sha256_used(const struct vfm_weights *w, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	return vfm_weights_sha256(w, hex, err);
}

int vfm_weights_sha256(const struct vfm_weights *w, char hex[VFM_SHA256_HEX], struct vfm_err *err)
{
	(void)w;
	(void)err;
	memset(hex, '0', VFM_SHA256_HEX - 1);
	hex[VFM_SHA256_HEX - 1] = 0;
	return 0;
}

/* ---- models ---- */

static void check_finite(const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		must(isfinite(x[i]));
}

/* The identity reads back as the same. */
static void check_encoder_id(const struct vfm_encoder_id *m)
{
	json_t *o = vfm_encoder_id_json(m);
	struct vfm_encoder_id again;
	struct vfm_err err;

	must(vfm_encoder_id_from_json(&again, o, "maker", &err) == 0 &&
		vfm_encoder_id_compare(m, &again) == VFM_ENCODER_ID_SAME);
	json_decref(o);
}

static void check_clip(struct vfm_vae *v, int64_t frames)
{
	const struct vfm_geometry *g = &vfm_vae_id(v)->geometry;
	const int64_t height = g->stride[1], width = 2 * g->stride[2], t = vfm_geometry_latent_frames(g, frames),
		      n = t * 2 * g->channels;
	const size_t picture = (size_t)(height * width * 3);
	uint8_t *rgb = vfm_calloc((size_t)frames, picture), *again;
	float *z = vfm_malloc((size_t)n * sizeof(*z));
	struct vfm_vae_session *s = NULL;
	struct vfm_err err = {0};
	int rc;

	for (size_t i = 0; i < (size_t)frames * picture; i++)
		rgb[i] = (uint8_t)(i * 37);
	rc = vfm_vae_encode_begin(&s, v, height, width, &err);
	if (rc >= 0)
		rc = vfm_vae_encode_push(s, rgb, frames, z, &err);
	vfm_vae_end(s);
	if (rc >= 0) {
		must(rc == t);
		again = vfm_calloc((size_t)vfm_geometry_pictures(g, t), picture);
		check_finite(z, (size_t)n);
		rc = vfm_vae_decode(v, z, t, 1, 2, again, NULL, &err);
		free(again);
	}
	must(rc >= 0 || err.msg[0]);
	free(rgb);
	free(z);
}

static int try_vae(struct vfm_stream *s, enum vfm_dtype dtype, struct vfm_err *err)
{
	struct vfm_vae *v = NULL;
	const struct vfm_geometry *g;
	int64_t frames;
	int rc = vfm_vae_open(&v, s, &(struct vfm_vae_opts){.path = "fuzz", .dtype = dtype}, err);

	if (rc < 0)
		return rc;
	g = &vfm_vae_id(v)->geometry;
	frames = vfm_geometry_fit(g, g->first + 2 * g->step);
	check_encoder_id(vfm_vae_id(v));
	must(frames > 0);
	/* The others take too long for a fuzzer. */
	if ((int64_t)g->stride[1] * g->stride[2] <= 1 << 10 && frames <= 17)
		check_clip(v, frames);
	vfm_vae_close(v);
	return 0;
}

static const char *tokenizer_file(void)
{
	static const char vocabulary[] = "{\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"Metaspace\", "
					 "\"replacement\": \"\xe2\x96\x81\", "
					 "\"add_prefix_space\": true}, \"model\": {\"type\": \"Unigram\", \"unk_id\": "
					 "1, \"vocab\": [[\"</s>\", 0], "
					 "[\"<unk>\", 0], [\"\xe2\x96\x81\", -2], [\"a\", -2]]}}";
	static char path[] = "/tmp/vfm-fuzz-tokenizer-XXXXXX.json";

	if (strstr(path, "XXXXXX")) {
		const int fd = mkstemps(path, 5);

		must(fd >= 0 && write(fd, vocabulary, sizeof(vocabulary) - 1) == sizeof(vocabulary) - 1);
		close(fd);
	}
	return path;
}

static int try_t5(struct vfm_stream *s, enum vfm_dtype dtype, struct vfm_err *err)
{
	static const char *const texts[] = {"", "a a aaa b"};
	const struct vfm_t5_opts o = {
		.path = "fuzz", .tokenizer = tokenizer_file(), .dtype = dtype, .max_len = 8, .stream = true};
	struct vfm_t5 *t = NULL;
	float *rows[2];
	int64_t n[2];
	int rc = vfm_t5_open(&t, s, &o, err);

	if (rc < 0)
		return rc;
	rc = vfm_t5_encode(t, texts, 2, rows, n, err);
	for (int i = 0; i < 2 && rc >= 0; i++) {
		must(n[i] > 0 && n[i] <= 8);
		check_finite(rows[i], (size_t)(n[i] * vfm_t5_dim(t)));
		free(rows[i]);
	}
	must(rc >= 0 || err->msg[0]);
	vfm_t5_close(t);
	return 0;
}

/* Returns a folder with the image processor of the configuration. */
static const char *processor_folder(void)
{
	static char folder[] = "/tmp/vfm-fuzz-processor-XXXXXX";
	const json_t *processor = json_object_get(all.config, "processor");
	char *path;

	must(!strstr(folder, "XXXXXX") || mkdtemp(folder));
	path = vfm_strfmt("%s/preprocessor_config.json", folder);
	unlink(path);
	must(!processor || json_dump_file(processor, path, JSON_ENCODE_ANY) == 0);
	free(path);
	return folder;
}

/* Returns whether a tower of this size takes too much time or memory for a fuzzer. */
static bool is_large_tower(void)
{
	const struct vfm_weight *position = vfm_weights_find(&all, "visual.pos_embedding");
	const json_t *inner = json_object_get(all.config, "vision_config"), *c = inner ? inner : all.config;
	json_int_t image = 224, patch = 32;
	struct vfm_err err;

	vfm_json_i64(c, "", "image_size", false, 1, 1 << 20, (int64_t *)&image, &err);
	vfm_json_i64(c, "", "patch_size", false, 1, 1 << 20, (int64_t *)&patch, &err);
	return image > 512 || image / patch > 32 || (position && position->ndim > 1 && position->shape[1] > 1024);
}

static int try_vision(struct vfm_stream *s, struct vfm_err *err)
{
	static const int sizes[][2] = {{1, 40}, {33, 20}};
	struct vfm_clip_vision *v = NULL;
	const struct vfm_encoder_id *id;
	uint8_t rgb[33 * 20 * 3];
	float *x;
	int rc = is_large_tower() ? 1 : vfm_clip_vision_open(&v, s, processor_folder(), err);

	if (rc)
		return rc > 0 ? 0 : rc;
	id = vfm_clip_vision_id(v);
	check_encoder_id(id);
	must(id->rows > 0 && id->dim > 0);
	for (size_t i = 0; i < sizeof(rgb); i++)
		rgb[i] = (uint8_t)(i * 37);
	x = vfm_malloc((size_t)id->rows * (size_t)id->dim * sizeof(*x));
	for (int i = 0; i < 2 && rc >= 0; i++) {
		rc = vfm_clip_vision_encode(v, rgb, sizes[i][0], sizes[i][1], x, err);
		must(rc >= 0 || err->msg[0]);
	}
	free(x);
	vfm_clip_vision_close(v);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct vfm_dev *dev;
	static struct vfm_stream *stream;
	const bool text = size && data[0] == '#', vision = size && data[0] == '@';
	const uint8_t *nul;
	struct vfm_buf b = {0};
	struct vfm_err err = {0};
	char *rest, *line;
	size_t head;
	int rc;

	if (!dev) {
		dev = vfm_cpu_open(&err);
		stream = dev ? dev->t->stream_new(dev, false, &err) : NULL;
		must(stream != NULL);
		all.data = vfm_calloc(WEIGHTS_MAX, sizeof(*all.data));
		all.positive = vfm_calloc(WEIGHTS_MAX, sizeof(*all.positive));
		for (int i = 0; i < WEIGHTS_MAX; i++) {
			all.data[i] = (float)(i * 7919 % 1009) / 5000 - .1f;
			all.positive[i] = all.data[i] + 1;
		}
	}
	data += text || vision, size -= text || vision;
	nul = size ? memchr(data, 0, size) : NULL;
	head = nul ? (size_t)(nul - data) : size;
	all.n = 0, all.numel = 0, all.misfit = false;
	if (nul)
		vfm_buf_add(&b, nul + 1, size - head - 1);
	for (line = b.data ? strtok_r(b.data, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest))
		list_tensor(line);
	all.config = head ? vfm_json_parse((const char *)data, head, "fuzz", &err) : NULL;
	if (!head || json_is_object(all.config)) {
		rc = vision    ? try_vision(stream, &err)
			: text ? try_t5(stream, size % 2 ? VFM_F32 : VFM_BF16, &err)
			       : try_vae(stream, size % 2 ? VFM_F32 : VFM_BF16, &err);
		must(rc == 0 || (rc == VFM_EUSAGE && err.msg[0]));
	}
	json_decref(all.config);
	vfm_buf_release(&b);
	return 0;
}
