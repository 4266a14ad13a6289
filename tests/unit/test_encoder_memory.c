/* Device memory of the native encoders: whose weights are on the device after each call, and none while the network of
 * a sampling computes.  The linker wraps vfm_cpu_open, so that the test sees the devices of the encoders, and
 * vfm_sampler_run, which the test replaces by the network. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ok.h"

#include "base/mem.h"
#include "base/philox.h"
#include "ckpt/safetensors.h"
#include "device/cpu/cpu.h"
#include "encoder/encode/encoder.h"
#include "io/file.h"
#include "train/sample/sampling.h"
#include "vae_values.h"

enum { DIM = 16, FFN = 24, LAYERS = 2, TEXTS = 3, FRAMES = 5, SIDE = 8, CHANNELS = 3, TOKENS = 4 * (1 + FRAMES / 2) };
#define SP "\xe2\x96\x81"

static char folder[] = "/tmp/vfm-test-encoder-memory-XXXXXX";

/* ---- wrapped functions ---- */

static struct vfm_dev *opened; /* the device that was opened last: that of the encoders */
static const struct vfm_sampling *sampling;
static int runs;

struct vfm_dev *__real_vfm_cpu_open(struct vfm_err *e);
struct vfm_dev *__wrap_vfm_cpu_open(struct vfm_err *e);
struct vfm_dev *__wrap_vfm_cpu_open(struct vfm_err *e)
{
	return opened = __real_vfm_cpu_open(e);
}

/* The network: no encoder has memory on its device, and all texts are encoded. */
int __wrap_vfm_sampler_run(const struct vfm_sampler *s, const struct vfm_sample_job *job,
	const struct vfm_sample_request *r, float *tokens, struct vfm_err *e);
int __wrap_vfm_sampler_run(const struct vfm_sampler *s, const struct vfm_sample_job *job,
	const struct vfm_sample_request *r, float *tokens, struct vfm_err *e)
{
	(void)s, (void)job, (void)e;
	assert_int_equal(opened->mem_now, 0);
	assert_null(sampling->encoders.text.ops);
	assert_true(r->cu_text[r->n] > 0 && r->cu_negative[r->n] > 0);
	for (int i = 0; i < r->n * TOKENS * CHANNELS; i++)
		tokens[i] = (float)(i % 7) / 7;
	runs++;
	return 0;
}

/* ---- models ---- */

/* Writes random tensors, which vfm_st_layout sorts. */
static void write_weights(const char *dir, const char *file, struct vfm_st_tensor *t, int n)
{
	char *path = vfm_strfmt("%s/%s", dir, file);
	struct vfm_buf b = {0};

	vfm_st_layout(t, (size_t)n, NULL, 0, &b);
	for (int i = 0; i < n; i++) {
		struct vfm_rng rng = vfm_rng_stream(1, 0, vfm_fnv64(t[i].name, strlen(t[i].name)), VFM_RNG_INIT);

		for (uint64_t k = 0; k < (t[i].end - t[i].begin) / sizeof(float); k++) {
			const double shift = strcmp(t[i].name, "latents_std") ? 0 : 1;
			const float v = (float)(shift + 0.2 * vfm_rng_normal(&rng, k));

			vfm_buf_add(&b, &v, sizeof(v));
		}
	}
	OK(vfm_write_file(path, b.data, b.len, &err));
	vfm_buf_release(&b);
	free(path);
}

static void write_json(const char *dir, const char *file, const char *text)
{
	char *path = vfm_strfmt("%s/%s", dir, file);

	OK(vfm_write_file(path, text, strlen(text), &err));
	free(path);
}

static char *make_subfolder(const char *name)
{
	char *dir = vfm_strfmt("%s/%s", folder, name);

	mkdir(dir, 0700);
	return dir;
}

struct model {
	const char *name, *config;
	struct vfm_st_tensor *tensors;
	int n;
};
#define MODEL(x)                                                                                                       \
	{                                                                                                              \
#x, x##_config, x##_tensors, sizeof(x##_tensors) / sizeof(x##_tensors[0])                              \
	}
static const struct model models[] = {
	MODEL(wan21), MODEL(wan22), MODEL(cosmos), MODEL(ltx_plain), MODEL(ltx_time), MODEL(hunyuan)};

static char *write_vae(const struct model *m)
{
	char *dir = make_subfolder(m->name);

	write_weights(dir, "diffusion_pytorch_model.safetensors", m->tensors, m->n);
	write_json(dir, "config.json", m->config);
	return dir;
}

static const struct {
	const char *name;
	int64_t rows, cols; /* rows 0: a vector */
} text_tensors[] = {
	{"SelfAttention.q", DIM, DIM},
	{"SelfAttention.k", DIM, DIM},
	{"SelfAttention.v", DIM, DIM},
	{"SelfAttention.o", DIM, DIM},
	{"SelfAttention.relative_attention_bias", 8, 1},
	{"layer_norm", 0, DIM},
	{"DenseReluDense.wi_0", FFN, DIM},
	{"DenseReluDense.wi_1", FFN, DIM},
	{"DenseReluDense.wo", DIM, FFN},
	{"layer_norm", 0, DIM},
};

static char *write_text_encoder(void)
{
	enum { EACH = sizeof(text_tensors) / sizeof(text_tensors[0]), N = 2 + LAYERS * EACH };
	char *dir = make_subfolder("text"), name[N][96];
	struct vfm_st_tensor t[N] = {{.name = "shared.weight", .dtype = VFM_F32, .ndim = 2, .shape = {9, DIM}},
		{.name = "encoder.final_layer_norm.weight", .dtype = VFM_F32, .ndim = 1, .shape = {DIM}}};

	for (int i = 2; i < N; i++) {
		const int k = (i - 2) % EACH;
		const int64_t rows = text_tensors[k].rows, cols = text_tensors[k].cols;

		snprintf(name[i], sizeof(name[i]), "encoder.block.%d.layer.%d.%s.weight", (i - 2) / EACH, k > 5,
			text_tensors[k].name);
		t[i] = (struct vfm_st_tensor){
			.name = name[i], .dtype = VFM_F32, .ndim = rows ? 2 : 1, .shape = {rows ? rows : cols, cols}};
	}
	write_weights(dir, "model.safetensors", t, N);
	write_json(dir, "config.json",
		"{\"model_type\":\"umt5\",\"vocab_size\":9,\"d_model\":16,\"d_kv\":16,\"d_ff\":24,\"num_layers\":2,"
		"\"num_heads\":1,\"relative_attention_num_buckets\":8,\"relative_attention_max_distance\":20}");
	write_json(dir, "tokenizer.json",
		"{\"model\":{\"type\":\"Unigram\",\"unk_id\":2,\"vocab\":[[\"<pad>\",0],[\"</s>\",0],[\"<unk>\",0],"
		"[\"" SP "\",-2],[\"a\",-3],[\"b\",-3],[\"c\",-3],[\"d\",-3],[\"e\",-3]]},\"added_tokens\":[],"
		"\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" SP "\"},\"post_processor\":{\"single\":["
		"{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</s>\"}}],\"special_tokens\":{\"</s>\":"
		"{\"ids\":[1]}}}}");
	return dir;
}

/* ---- one set of encoders ---- */

enum { LATENTS_MAX = 3, CELLS = 2, SIDE_MAX = 16 };

struct kept {
	uint8_t rgb[FRAMES * SIDE_MAX * SIDE_MAX * 3];
	size_t size; /* bytes of a picture */
	int n;
};

static int keep_picture(void *ctx, const uint8_t *rgb, struct vfm_err *e)
{
	struct kept *k = ctx;

	(void)e;
	assert_true(k->n < FRAMES);
	memcpy(k->rgb + (size_t)k->n++ * k->size, rgb, k->size);
	return 0;
}

enum { TEXT, ENCODE, DECODE, CALLS };

/* Runs a call; returns the bytes on the device afterwards. */
static int64_t run_call(const struct vfm_encoder_set *s, int call, struct kept *k)
{
	static const uint8_t rgb[SIDE_MAX * SIDE_MAX * 3] = {200, 100};
	static const float z[CHANNELS * LATENTS_MAX * CELLS * CELLS] = {.5f, -1};
	const struct vfm_geometry *g = &s->video.id.geometry;
	const int side = CELLS * g->stride[1];
	const int32_t latents = (int32_t)vfm_geometry_latent_frames(g, FRAMES);
	struct vfm_encoded x = {0};

	assert_true(side <= SIDE_MAX && latents <= LATENTS_MAX && g->channels == CHANNELS);
	*k = (struct kept){.size = (size_t)side * (size_t)side * 3};
	if (call == TEXT)
		OK(s->text.ops->encode_text(s->text.ctx, 0, "a b", &x, &err));
	else if (call == ENCODE)
		OK(s->video.ops->encode_given(s->video.ctx,
			&(struct vfm_encode_given){
				.id = "x", .p = {.rgb = rgb, .n = 1, .height = side, .width = side}, .frames = FRAMES},
			&x, &err));
	else
		OK(s->video.ops->decode(s->video.ctx, 0, z, (const int32_t[]){latents, CELLS, CELLS}, FRAMES,
			&(struct vfm_picture_sink){keep_picture, k}, &err));
	vfm_encoded_release(&x);
	return opened->mem_now;
}

/* With one_model, the device holds what the last call needs; else the sum of all.  Results do not change. */
static void check_calls(const struct model *m, bool one_model)
{
	char *vae = write_vae(m), *text = write_text_encoder();
	const struct vfm_encoder_opts o = {.vae = vae,
		.text_encoder = text,
		.text_dtype = "fp32",
		.encodes = true,
		.decodes = true,
		.f32 = true,
		.one_model = one_model,
		VFM_ENCODER_DEFAULTS};
	static const int order[] = {DECODE, TEXT, ENCODE, DECODE, TEXT};
	struct vfm_encoder_set s = {0};
	struct kept first = {.n = 0}, k;
	int64_t alone[CALLS], bytes = 0;

	OK(vfm_encoder_open(&s, &o, &err));
	assert_int_equal(opened->mem_now, 0);
	for (int i = 0; i < CALLS; i++) {
		alone[i] = run_call(&s, i, i == DECODE ? &first : &k);
		assert_true(alone[i] > 0);
		vfm_encoder_unload(&s);
		assert_int_equal(opened->mem_now, 0);
	}
	assert_int_equal(first.n, FRAMES);
	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
		bytes = run_call(&s, order[i], &k);
		assert_true(bytes == alone[order[i]] || !one_model);
		if (order[i] == DECODE)
			assert_memory_equal(&k, &first, sizeof(k));
	}
	assert_true(one_model || bytes == alone[TEXT] + alone[ENCODE] + alone[DECODE]);
	vfm_encoder_close(&s);
	free(vae), free(text);
}

static void test_one_model(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		check_calls(&models[i], true);
		check_calls(&models[i], false);
	}
}

/* A sink that fails ends the decoding with its code; the next decoding works. */
static int fail_second(void *ctx, const uint8_t *rgb, struct vfm_err *e)
{
	int *n = ctx;

	(void)rgb;
	return ++*n == 2 ? vfm_fail(e, VFM_EINPUT, "the disk is full") : 0;
}

static void test_failing_sink(void **state)
{
	enum { LONG = 13 }; /* latent frames: more pictures than wait for the caller */
	char *vae = write_vae(&models[0]);
	const struct vfm_encoder_opts o = {.vae = vae, .decodes = true, .f32 = true, VFM_ENCODER_DEFAULTS};
	float *z = vfm_calloc(CHANNELS * LONG * 4, sizeof(*z));
	struct vfm_encoder_set s = {0};
	struct kept k;
	int n = 0;
	(void)state;

	OK(vfm_encoder_open(&s, &o, &err));
	assert_int_equal(s.video.ops->decode(s.video.ctx, 0, z, (const int32_t[]){LONG, 2, 2}, 2 * LONG - 1,
				 &(struct vfm_picture_sink){fail_second, &n}, &err),
		VFM_EINPUT);
	assert_string_equal(err.msg, "the disk is full");
	assert_int_equal(n, 2);
	run_call(&s, DECODE, &k);
	assert_int_equal(k.n, FRAMES);
	vfm_encoder_close(&s);
	free(z), free(vae);
}

/* ---- a sampling ---- */

static int count_lines(void *ctx, const char *lines, size_t len, struct vfm_err *e)
{
	(void)e;
	for (size_t i = 0; i < len; i++)
		*(int *)ctx += lines[i] == '\n';
	return 0;
}

static void open_sampling(struct vfm_sampling *s)
{
	for (int i = 0; i < TEXTS; i++) {
		struct vfm_sample_item *it = vfm_sampling_add(s, i == 1 ? "b c" : "a", NULL);

		it->path = vfm_strfmt("%s/%d.png", folder, i);
		it->p.seed = i; /* a batch each */
	}
	OK(vfm_sampling_open(s, &err));
	for (int i = 0; i < TEXTS; i++) {
		assert_true(s->v[i].in.has_texts);
		assert_int_equal(s->v[i].in.n_text, i == 1 ? 5 : 3);
		assert_int_equal(s->v[i].in.n_negative, 3);
	}
	assert_memory_equal(
		s->v[0].in.text, s->v[2].in.text, (size_t)s->v[0].in.n_text * DIM * sizeof(*s->v[0].in.text));
	assert_memory_not_equal(
		s->v[0].in.text, s->v[1].in.text, (size_t)s->v[0].in.n_text * DIM * sizeof(*s->v[0].in.text));
	assert_int_equal(opened->mem_now, 0);
}

/* Samples three videos in three batches: the texts are encoded before, and the decoder leaves the device between. */
static void test_sampling(void **state)
{
	char *vae = write_vae(&models[0]), *text = write_text_encoder();
	struct vfm_sampling_opts o = {.prompt = {.negative = "e", .frames = FRAMES, .width = SIDE, .height = SIDE},
		.encoder = {.vae = vae, .text_encoder = text, .decodes = true, .f32 = true, VFM_ENCODER_DEFAULTS},
		.context = 1};
	struct vfm_err ignored;
	struct vfm_dev *dev = __real_vfm_cpu_open(&ignored);
	struct vfm_job job = {.world = vfm_comm_self()};
	struct vfm_config c;
	int lines = 0;
	struct vfm_sampling s = {.o = &o,
		.job = &job,
		.device = "cpu",
		.c = &c,
		.trained_by = "a test",
		.leader = true,
		.groups = 1,
		.together = vfm_comm_self(),
		.print = count_lines,
		.ctx = &lines};
	(void)state;

	vfm_config_defaults(&c);
	c.model.channels = CHANNELS;
	c.model.text_dim = DIM;
	memcpy(c.model.patch, (int64_t[]){1, 1, 1}, sizeof(c.model.patch));
	vfm_sampler_defaults(&o.sampler);
	o.prompt.cfg = 3;
	o.prompt.steps = o.sampler.solver.steps = 2;
	o.prompt.fps_num = o.prompt.fps_den = 1;
	open_sampling(&s);
	s.net.stream = dev->t->stream_new(dev, false, &err);
	sampling = &s;
	OK(vfm_sampling_run(&s, &err));
	assert_int_equal(runs, TEXTS);
	assert_int_equal(lines, TEXTS);
	assert_true(opened->mem_now > 0); /* the decoder was there after the last */
	vfm_sampling_release(&s);
	dev->t->stream_free(s.net.stream);
	dev->t->dev_free(dev);
	free(vae), free(text);
}

static int make_folder(void **state)
{
	(void)state;
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
	(void)state;
	return vfm_rm_rf(folder, &err) < 0 ? -1 : 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_model),
		cmocka_unit_test(test_failing_sink),
		cmocka_unit_test(test_sampling),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
