/* The VAEs of Wan, Cosmos, LTX-Video and HunyuanVideo 1.5: values of diffusers, pushes, sizes, conditions, identity, and weights that do not fit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ok.h"

#include "base/mem.h"
#include "base/philox.h"
#include "device/cpu/cpu.h"
#include "encoder/vae/vae.h"
#include "encoder/vae/vae_impl.h"
#include "io/file.h"
#include "vae_values.h"

enum { T = 9, H = 3, W = 2, C = 3, KEPT = 7 };

struct golden {
	const char *name, *config;
	struct vfm_st_tensor *tensors;
	int n, stride, stride_t;
	const float *latents, *pixels;
};
#define GOLDEN(x, s, t)                                                                                                \
	{                                                                                                              \
#x, x##_config, x##_tensors, sizeof(x##_tensors) / sizeof(x##_tensors[0]), s, t, x##_latents,          \
			x##_pixels                                                                                     \
	}
static const struct golden goldens[] = {GOLDEN(wan21, 4, 2), GOLDEN(wan22, 8, 4), GOLDEN(cosmos, 4, 4),
	GOLDEN(ltx_plain, 4, 2), GOLDEN(ltx_time, 4, 4), GOLDEN(hunyuan, 4, 2)};
static const struct golden *const of_cosmos = &goldens[2], *const of_ltx = &goldens[4], *const of_hunyuan = &goldens[5];

static char folder[] = "/tmp/vfm-test-vae-XXXXXX";
static struct vfm_dev *dev;
static struct vfm_stream *stream;

static void write_text(const char *dir, const char *name, const char *data, size_t n)
{
	char *path = vfm_strfmt("%s/%s", dir, name);
	FILE *f = fopen(path, "wb");

	assert_int_equal(fwrite(data, 1, n, f), n);
	fclose(f);
	free(path);
}

/* As GAINS of tests/ref/make_vae.py. */
static bool is_gain(const char *name)
{
	static const char *const gains[] = {"gamma", ".norm.weight", "norm3.weight", "latents_std", "multiplier"};

	for (size_t i = 0; i < sizeof(gains) / sizeof(gains[0]); i++)
		if (strstr(name, gains[i]))
			return true;
	return false;
}

/* Writes the weights in vae_values.h as diffusers would; skip: a tensor that is left out. */
static char *write_model(const struct golden *g, const char *name, const char *skip)
{
	char *dir = vfm_strfmt("%s/%s", folder, name);
	struct vfm_st_tensor t[512];
	struct vfm_buf b = {0};
	size_t start;
	int n = 0;

	mkdir(dir, 0700);
	for (int i = 0; i < g->n; i++)
		if (!skip || strcmp(g->tensors[i].name, skip) != 0)
			t[n++] = g->tensors[i];
	vfm_st_layout(t, (size_t)n, NULL, 0, &b);
	start = b.len;
	for (int i = 0; i < n; i++) { /* layout has sorted them */
		struct vfm_rng rng = vfm_rng_stream(1, 0, vfm_fnv64(t[i].name, strlen(t[i].name)), VFM_RNG_INIT);
		const bool gain = is_gain(t[i].name);

		assert_int_equal(b.len - start, t[i].begin);
		for (uint64_t k = 0; k < (t[i].end - t[i].begin) / sizeof(float); k++) {
			const double x = vfm_rng_normal(&rng, k);
			const float v = (float)(gain ? 1 + 0.1 * x : 0.12 * x);

			vfm_buf_add(&b, &v, sizeof(v));
		}
	}
	write_text(dir, "diffusion_pytorch_model.safetensors", b.data, b.len);
	write_text(dir, "config.json", g->config, strlen(g->config));
	vfm_buf_release(&b);
	return dir;
}

static struct vfm_vae *open_model(const char *dir, struct vfm_vae_opts o)
{
	struct vfm_vae *v;

	o.path = dir;
	OK(vfm_vae_open(&v, stream, &o, &err));
	return v;
}

/* [frames, H s, W s, 3] */
static uint8_t *make_clip(const struct golden *g)
{
	const uint64_t n = (uint64_t)(T * H * g->stride * W * g->stride * 3);
	uint8_t *rgb = vfm_malloc(n);

	for (uint64_t i = 0; i < n; i++)
		rgb[i] = (uint8_t)((37 * i + 11 * i * i) % 256);
	return rgb;
}

static float *make_latents(int n)
{
	float *z = vfm_malloc((size_t)n * sizeof(*z));

	for (int i = 0; i < n; i++)
		z[i] = (float)(29 * i % 64) / 16 - 2;
	return z;
}

static double largest_difference(const float *got, const float *want, int n, int step)
{
	double most = 0;

	for (int i = 0; i < n; i++)
		most = fmax(most, fabs((double)got[i * step] - (double)want[i]));
	return most;
}

static void test_values(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(goldens) / sizeof(goldens[0]); i++) {
		const struct golden *g = &goldens[i];
		const int k = 1 + (T - 1) / g->stride_t, h = H * g->stride, w = W * g->stride;
		const int n_z = k * C * H * W, n_x = T * h * w * 3;
		float *z = make_latents(n_z), *latents = vfm_calloc((size_t)n_z, 4), *x = vfm_calloc((size_t)n_x, 4);
		char *dir = write_model(g, g->name, NULL);
		uint8_t *rgb = make_clip(g), *u8 = vfm_calloc((size_t)n_x, 1);
		struct vfm_vae *v;

		/* f32, then bf16: an eighth of a standard deviation, or of the range, is far more than it differs */
		for (int half = 0; half < 2; half++) {
			const double limit = half ? 0.125 : 2e-5;

			v = open_model(dir, (struct vfm_vae_opts){.dtype = half ? VFM_BF16 : VFM_F32});
			OK(vfm_vae_encode(v, rgb, T, h, w, latents, &err));
			assert_true(largest_difference(latents, g->latents, n_z, 1) < limit);
			OK(vfm_vae_decode(v, z, k, H, W, u8, x, &err));
			assert_true(largest_difference(x, g->pixels, (n_x + KEPT - 1) / KEPT, KEPT) < limit);
			for (int j = 0; j < n_x; j++)
				assert_int_equal(u8[j], (int)lrintf((x[j] + 1) * 127.5f));
			vfm_vae_close(v);
		}
		free(dir), free(rgb), free(u8), free(x), free(latents), free(z);
	}
}

/* Cut in any way, the clip has the same bits; a session takes 1 + 4n frames, then 4n. */
static void expect_equal_pushes(const struct golden *g)
{
	static const int cuts[][4] = {{1, 4, 4}, {5, 4}, {9}, {1, 0, 8}};
	const int k = 1 + (T - 1) / g->stride_t, h = H * g->stride, w = W * g->stride;
	char *dir = write_model(g, "pushes", NULL);
	struct vfm_vae *v = open_model(dir, (struct vfm_vae_opts){.dtype = VFM_F32});
	float want[5 * C * H * W] = {0}, got[5 * C * H * W];
	uint8_t *rgb = make_clip(g);
	struct vfm_vae_session *s;

	OK(vfm_vae_encode(v, rgb, T, h, w, want, &err));
	for (int i = 0; i < 4; i++) {
		int at = 0, out = 0, rc;

		memset(got, 0, sizeof(got));
		OK(vfm_vae_encode_begin(&s, v, h, w, &err));
		for (int j = 0; j < 4; at += cuts[i][j++], out += rc)
			OK(rc = vfm_vae_encode_push(s, rgb + at * h * w * 3, cuts[i][j], got + out * C * H * W, &err));
		assert_int_equal(out, k);
		assert_int_equal(vfm_vae_encode_push(s, rgb, 1, got, &err), VFM_EUSAGE);
		vfm_vae_end(s);
		assert_memory_equal(got, want, sizeof(want));
	}
	assert_int_equal(vfm_vae_encode(v, rgb, 8, h, w, got, &err), VFM_EUSAGE);
	assert_int_equal(vfm_vae_encode(v, rgb, 9, h - 1, w, got, &err), VFM_EUSAGE);
	vfm_vae_close(v);
	free(dir), free(rgb);
}

static void test_pushes(void **state)
{
	(void)state;
	expect_equal_pushes(&goldens[1]);
	expect_equal_pushes(of_cosmos);
	expect_equal_pushes(of_ltx);
	expect_equal_pushes(of_hunyuan);
}

/* Residual blocks have the same bits in strips of any height, also with one row in the last strip. */
static void expect_equal_strips(const struct golden *g, enum vfm_dtype dtype)
{
	enum { ROWS = 5 };
	const int k = 3, h = ROWS * g->stride, w = W * g->stride, n_z = k * C * ROWS * W;
	const int frames = 1 + (k - 1) * g->stride_t, n_x = frames * h * w * 3;
	char *dir = write_model(g, "strips", NULL);
	struct vfm_vae *v = open_model(dir, (struct vfm_vae_opts){.dtype = dtype});
	float *z = make_latents(n_z), want[3 * C * ROWS * W], got[3 * C * ROWS * W], *x = vfm_calloc((size_t)n_x, 4),
	      *y = vfm_calloc((size_t)n_x, 4);
	uint8_t *rgb = vfm_calloc((size_t)n_x, 1);
	struct vfm_vae_session *s;

	for (int i = 0; i < n_x; i++)
		rgb[i] = (uint8_t)((41 * i + 7 * i * (i % 97)) % 256);
	OK(vfm_vae_encode(v, rgb, frames, h, w, want, &err));
	OK(vfm_vae_decode(v, z, k, ROWS, W, NULL, x, &err));
	for (int64_t strip = 1; strip < 1 << 20; strip *= 4) {
		OK(vfm_vae_encode_begin(&s, v, h, w, &err));
		s->run.strip = strip;
		assert_int_equal(vfm_vae_encode_push(s, rgb, frames, got, &err), k);
		vfm_vae_end(s);
		assert_memory_equal(got, want, sizeof(want));
		OK(vae_session_begin(&s, v, VAE_DECODER, ROWS, W, &err));
		s->run.strip = strip;
		s->out.f32 = y;
		for (int i = 0; i < k; i++)
			OK(vae_session_latents(s, z + i * C * ROWS * W, W, ROWS * W, &err));
		vfm_vae_end(s);
		assert_memory_equal(y, x, (size_t)n_x * 4);
	}
	vfm_vae_close(v);
	free(dir), free(z), free(x), free(y), free(rgb);
}

static void test_strips(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		expect_equal_strips(&goldens[i], VFM_F32);
		expect_equal_strips(&goldens[i], VFM_BF16);
	}
}

/* A condition whose pictures are those of a clip of one frame has its first latent; grey is 0, between 127 and 128. */
static void expect_given(const struct golden *g)
{
	const int k = 1 + (T - 1) / g->stride_t, h = H * g->stride, w = W * g->stride, n = C * H * W;
	char *dir = write_model(g, "given", NULL);
	struct vfm_vae *v = open_model(dir, (struct vfm_vae_opts){.dtype = VFM_F32, .no_decoder = true});
	struct vfm_pictures p = {.rgb = make_clip(g), .n = 1, .height = h, .width = w};
	float one[C * H * W], first[5 * C * H * W], both[5 * C * H * W];

	OK(vfm_vae_encode(v, p.rgb, 1, h, w, one, &err));
	OK(vfm_vae_encode_given(v, &p, T, first, &err));
	assert_memory_equal(first, one, sizeof(one));
	p.n = 2;
	OK(vfm_vae_encode_given(v, &p, T, both, &err));
	assert_memory_equal(both, first, (size_t)(k - 1) * sizeof(one)); /* causal */
	assert_true(largest_difference(both + (k - 1) * n, first + (k - 1) * n, n, 1) > 1e-4);
	p.n = 3;
	assert_int_equal(vfm_vae_encode_given(v, &p, T, both, &err), VFM_EUSAGE);
	assert_int_equal(vfm_vae_decode(v, one, 1, H, W, NULL, NULL, &err), VFM_EUSAGE);
	vfm_vae_close(v);
	free(dir), free((void *)p.rgb);
}

static void test_given(void **state)
{
	(void)state;
	expect_given(&goldens[0]);
	expect_given(of_cosmos);
	expect_given(of_ltx);
	expect_given(of_hunyuan);
}

/* The decoder of LTX-Video looks ahead: pictures wait for later latent frames, and the end of the clip releases them.
 * An image is a clip of one frame. */
static void test_ahead(void **state)
{
	const struct golden *g = of_ltx;
	const int h = H * g->stride, w = W * g->stride, n = C * H * W, size = h * w * 3;
	char *dir = write_model(g, "ahead", NULL);
	struct vfm_vae *v = open_model(dir, (struct vfm_vae_opts){.dtype = VFM_F32, .no_encoder = true});
	float *z = make_latents(3 * n), *whole = vfm_calloc((size_t)(T * size), 4),
	      *x = vfm_calloc((size_t)(T * size), 4);
	struct vfm_vae_session *s;

	(void)state;
	OK(vfm_vae_decode(v, z, 3, H, W, NULL, whole, &err));
	OK(vae_session_begin(&s, v, VAE_DECODER, H, W, &err));
	s->out.f32 = x;
	for (int i = 0; i < 3; i++) {
		OK(vae_session_latents(s, z + i * n, W, H * W, &err));
		assert_true(s->emitted <= 1 + 4 * i && s->emitted < T);
	}
	OK(vae_session_finish(s, &err));
	assert_int_equal(s->emitted, T);
	vfm_vae_end(s);
	assert_memory_equal(x, whole, (size_t)(T * size) * 4);
	OK(vfm_vae_decode(v, z, 1, H, W, NULL, x, &err));
	assert_true(largest_difference(x, whole, size, 1) > 1e-3);
	vfm_vae_close(v);
	free(dir), free(z), free(x), free(whole);
}

/* Each latent frame of Cosmos has its mean and deviation: of others they are not known. */
static void test_lengths(void **state)
{
	const struct golden *g = of_cosmos;
	const int h = H * g->stride, w = W * g->stride, n = C * H * W;
	char *dir = write_model(g, "lengths", NULL);
	struct vfm_vae *v = open_model(dir, (struct vfm_vae_opts){.dtype = VFM_F32});
	uint8_t *rgb = vfm_calloc((size_t)(13 * h * w), 3);
	float *x = vfm_calloc((size_t)(13 * h * w * 3), 4), *z = make_latents(4 * n);
	struct vfm_vae_session *s;

	(void)state;
	assert_int_equal(vfm_vae_id(v)->geometry.max_frames, 9);
	assert_int_equal(vfm_vae_encode(v, rgb, 13, h, w, z, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "at most 9"));
	assert_int_equal(vfm_vae_decode(v, z, 4, H, W, NULL, x, &err), VFM_EUSAGE);
	assert_non_null(strstr(err.msg, "4 latent frames, but latents_mean is given for 3"));
	OK(vfm_vae_encode_begin(&s, v, h, w, &err));
	OK(vfm_vae_encode_push(s, rgb, 9, z, &err));
	assert_int_equal(vfm_vae_encode_push(s, rgb, 4, z, &err), VFM_EUSAGE);
	vfm_vae_end(s);
	vfm_vae_close(v);
	free(dir), free(rgb), free(x), free(z);
}

/* Writes the configuration with the first `old` replaced. */
static void write_replaced(const char *dir, const char *config, const char *old, const char *new)
{
	const char *at = strstr(config, old);
	char *text;

	assert_non_null(at);
	text = vfm_strfmt("%.*s%s%s", (int)(at - config), config, new, at + strlen(old));
	write_text(dir, "config.json", text, strlen(text));
	free(text);
}

/* Everything that changes results is in the identity; how they are computed is not. */
static void test_identity(void **state)
{
	static const struct vfm_vae_opts o[] = {{.dtype = VFM_F32}, {.dtype = VFM_F32, .no_decoder = true},
		{.dtype = VFM_BF16}, {.dtype = VFM_F32, .tile = {16, 16, 8, 8}}};
	char *dir = write_model(&goldens[0], "identity", NULL), *other = write_model(&goldens[1], "other", NULL);
	struct vfm_encoder_id m[4];
	struct vfm_geometry geometry;
	struct vfm_vae *v;

	(void)state;
	for (int i = 0; i < 4; i++) {
		v = open_model(dir, o[i]);
		m[i] = *vfm_vae_id(v);
		vfm_vae_close(v);
	}
	assert_int_equal(vfm_encoder_id_compare(&m[0], &m[1]), VFM_ENCODER_ID_SAME);
	assert_int_equal(vfm_encoder_id_compare(&m[0], &m[2]), VFM_ENCODER_ID_DIFFERENT);
	assert_int_equal(vfm_encoder_id_compare(&m[0], &m[3]), VFM_ENCODER_ID_DIFFERENT);
	assert_string_not_equal(m[0].sha256, m[3].sha256);
	v = open_model(other, o[0]);
	geometry = vfm_vae_id(v)->geometry;
	assert_string_equal(vfm_vae_id(v)->name, "wan-vae");
	assert_true(geometry.stride[0] == 4 && geometry.stride[1] == 8 && geometry.channels == 3);
	assert_string_equal(geometry.scaling, "mean-std");
	vfm_vae_close(v);
	free(dir), free(other);

	/* the same weights with another configuration */
	dir = write_model(of_cosmos, "identity-cosmos", NULL);
	v = open_model(dir, o[0]);
	m[0] = *vfm_vae_id(v);
	geometry = vfm_vae_id(v)->geometry;
	vfm_vae_close(v);
	assert_string_equal(m[0].name, "cosmos-vae");
	assert_string_equal(m[0].version, "cv4x4x4:f32");
	assert_true(geometry.first == 1 && geometry.step == 4 && geometry.channels == 3);
	write_replaced(dir, of_cosmos->config, "-0.125]", "-0.25]");
	v = open_model(dir, o[0]);
	assert_string_not_equal(m[0].sha256, vfm_vae_id(v)->sha256);
	vfm_vae_close(v);
	write_replaced(dir, of_cosmos->config, "\"latents_mean\"", "\"patch_type\": \"rearrange\", \"latents_mean\"");
	v = open_model(dir, o[0]);
	assert_string_not_equal(m[0].sha256, vfm_vae_id(v)->sha256);
	vfm_vae_close(v);
	free(dir);

	dir = write_model(of_ltx, "identity-ltx", NULL);
	v = open_model(dir, o[0]);
	m[0] = *vfm_vae_id(v);
	vfm_vae_close(v);
	assert_string_equal(m[0].name, "ltx-vae");
	assert_string_equal(m[0].version, "timestep:f32");
	assert_true(m[0].geometry.first == 1 && m[0].geometry.step == 4 && m[0].geometry.stride[1] == 4);
	write_replaced(dir, of_ltx->config, "true], \"upsample_factor", "false], \"upsample_factor");
	v = open_model(dir, o[0]);
	assert_string_not_equal(m[0].sha256, vfm_vae_id(v)->sha256);
	vfm_vae_close(v);
	free(dir);
}

static void expect_refused(const char *dir, const struct vfm_vae_opts *o, const char *words)
{
	struct vfm_vae_opts with = *o;
	struct vfm_vae *v;

	with.path = dir;
	assert_int_equal(vfm_vae_open(&v, stream, &with, &err), VFM_EUSAGE);
	if (!strstr(err.msg, words))
		fail_msg("'%s' does not name '%s'", err.msg, words);
}

/* A release whose encoder halves time three times would make latents of groups of 8 frames, not of 4. */
static void test_odd_release(void **state)
{
	static const char *const blocks[] = {"0.residual.2", "2.residual.2", "4.residual.2", "6.residual.2",
		"1.time_conv", "3.time_conv", "5.time_conv"};
	char *path = vfm_strfmt("%s/release.safetensors", folder), names[7][64];
	struct vfm_st_tensor t[10] = {{.name = "encoder.conv1.weight", .ndim = 5, .shape = {1, 3, 1, 1, 1}},
		{.name = "decoder.conv1.weight", .ndim = 5, .shape = {1, 16, 1, 1, 1}},
		{.name = "conv2.weight", .ndim = 5, .shape = {16, 1, 1, 1, 1}}};
	const float zeros[128] = {0};
	struct vfm_buf b = {0};

	(void)state;
	for (int i = 0; i < 7; i++) {
		snprintf(names[i], sizeof(names[i]), "encoder.downsamples.%s.weight", blocks[i]);
		t[3 + i] = (struct vfm_st_tensor){.name = names[i], .ndim = 5, .shape = {1, 1, 1, 1, 1}};
	}
	for (int i = 0; i < 10; i++)
		t[i].dtype = VFM_F32;
	vfm_st_layout(t, 10, NULL, 0, &b);
	vfm_buf_add(&b, zeros, t[9].end);
	write_text(folder, "release.safetensors", b.data, b.len);
	expect_refused(path, &(struct vfm_vae_opts){.dtype = VFM_F32}, "more than two levels halve time");
	vfm_buf_release(&b);
	free(path);
}

static void test_refused(void **state)
{
	const struct vfm_vae_opts o = {.dtype = VFM_F32};
	char *dir = write_model(&goldens[0], "missing", "decoder.conv_in.bias");
	const char *none = "{}",
		   *wide = "{\"_class_name\": \"AutoencoderKLWan\", \"patch_size\": 8, "
			   "\"in_channels\": 192, \"out_channels\": 192, \"dim_mult\": [1, 1, 1, 1, 1, 1, 1], "
			   "\"temperal_downsample\": [false, false, false, false, false, false]}";

	(void)state;
	expect_refused(dir, &o, "1 tensor missing: decoder.conv_in.bias");
	free(dir);
	dir = write_model(&goldens[0], "missing-shared", "decoder.up_blocks.0.upsamplers.0.time_conv.bias");
	expect_refused(dir, &o, ": 1 tensor missing: decoder.up_blocks.0.upsamplers.0.time_conv.bias");
	free(dir);
	dir = write_model(&goldens[0], "config", NULL);
	write_text(dir, "config.json", goldens[1].config, strlen(goldens[1].config));
	expect_refused(dir, &o, "the weights of the VAE of Wan 2.2");
	write_text(dir, "config.json", none, strlen(none));
	expect_refused(dir, &o, "_class_name");
	expect_refused(dir, &(struct vfm_vae_opts){.dtype = VFM_F16}, "f16");
	write_text(dir, "config.json", wide, strlen(wide));
	expect_refused(dir, &o, "patch_size: a latent covers 512 x 512 pixels");
	free(dir);
	dir = write_model(&goldens[0], "tiles", NULL);
	expect_refused(dir, &(struct vfm_vae_opts){.dtype = VFM_F32, .tile = {10, 8, 4, 4}}, "multiples of 4");
	expect_refused(dir, &(struct vfm_vae_opts){.dtype = VFM_F32, .tile = {8, 8, 12, 4}}, "not smaller");
	free(dir);
	dir = write_model(of_cosmos, "cosmos-missing", "encoder.mid_block.temp_attentions.0.to_k.weight");
	expect_refused(dir, &o, "the VAE of Cosmos: 1 tensor missing: encoder.mid_block.temp_attentions.0.to_k.weight");
	expect_refused(dir, &(struct vfm_vae_opts){.dtype = VFM_F32, .tile = {64, 64, 48, 48}}, "has no tiles");
	write_replaced(dir, of_cosmos->config, "AutoencoderKLCosmos", "AutoencoderKL");
	expect_refused(dir, &o, "_class_name: expected AutoencoderKLWan, AutoencoderKLCosmos, ");
	write_replaced(dir, of_cosmos->config, "\"latents_mean\"", "\"scaling_factor\": 0.5, \"latents_mean\"");
	expect_refused(dir, &o, "scaling_factor");
	free(dir);
}

struct refusal {
	const char *old, *new, *words;
};
/* Each case replaces a part of the configuration. */
static void expect_refusals(const struct golden *g, const struct refusal *cases, size_t n)
{
	const struct vfm_vae_opts o = {.dtype = VFM_F32};
	char *dir = write_model(g, "refusals", NULL);

	for (size_t i = 0; i < n; i++) {
		write_replaced(dir, g->config, cases[i].old, cases[i].new);
		expect_refused(dir, &o, cases[i].words);
	}
	write_text(dir, "config.json", g->config, strlen(g->config));
	expect_refused(dir, &(struct vfm_vae_opts){.dtype = VFM_F32, .tile = {64, 64, 48, 48}}, "has no tiles");
	free(dir);
}

/* Each key of LTX-Video is followed or named. */
static void test_refused_ltx(void **state)
{
	static const struct refusal cases[] = {
		{"\"patch_size\": 1", "\"patch_size\": 1, \"patch_size_t\": 2", "patch_size_t: expected 1, got 2"},
		{"\"patch_size\": 1", "\"patch_size\": 1, \"clip\": 2", "clip: unknown key"},
		{"\"patch_size\": 1", "\"patch_size\": 1, \"encoder_causal\": false", "encoder_causal"},
		{"\"patch_size\": 1", "\"patch_size\": 1, \"scaling_factor\": 0", "scaling_factor"},
		{"\"patch_size\": 1", "\"patch_size\": 1, \"resnet_norm_eps\": -1", "resnet_norm_eps"},
		{"\"patch_size\": 1", "\"patch_size\": 1, \"spatial_compression_ratio\": 8",
			"spatial_compression_ratio: expected 4, got 8"},
		{"[2, 2]", "[1, 1]", "timestep_conditioning"},
		{"[2, 2]", "[2, 3]", "upsample_factor[1]"},
		{"[2, 2]", "[2]", "upsample_factor: expected 2 elements, got 1"},
		{"[8, 16]", "[16, 16]", "upsample_factor[0]"},
		{"[4, 8, 8]", "[4, 8]", "block_out_channels: expected 3 elements"},
		{"[4, 8, 8]", "[4, 8, 12]", "block_out_channels[2]"},
		{"\"spatiotemporal\"]", "\"conv\"]", "encoder.down_blocks.1.downsamplers.0.conv.bias"},
		{"\"spatiotemporal\"]", "\"spatial\"]", "decoder_spatio_temporal_scaling: the decoder doubles"},
		{"\"spatiotemporal\"]", "\"haar\"]", "downsample_type[1]: haar is not supported"},
		{"\"LTXVideo095DownBlock3D\"]", "\"LTXVideoDownBlock3D\"]", "down_block_types[1]"},
		{"[1, 1, 2]", "[1, 1, 3]", "tensors missing: decoder.mid_block.resnets.2.conv1"},
		{"[false, true, true]", "[true, true, true]", "per_channel_scale1"},
	};

	(void)state;
	expect_refusals(of_ltx, cases, sizeof(cases) / sizeof(cases[0]));
}

/* Likewise of HunyuanVideo 1.5. */
static void test_refused_hunyuan(void **state)
{
	static const struct refusal cases[] = {
		{"\"latent_channels\": 3", "\"latent_channels\": 3, \"clip\": 1", "clip: unknown key"},
		{"\"latent_channels\": 3", "\"latent_channels\": 3, \"in_channels\": 4", "in_channels: expected 3"},
		{"\"latent_channels\": 3", "\"latent_channels\": 5", "latent_channels: expected a divisor of half"},
		{"[6, 12, 24]", "[6, 12]", "spatial_compression_ratio: block_out_channels has 2 elements"},
		{"[6, 12, 24]", "[6, 14, 24]", "block_out_channels[0]: the downsampling cannot make 14 channels of 6"},
		{"[6, 12, 24]", "[]", "block_out_channels: expected at least one"},
		{"[6, 12, 24]", "[12, 12, 24]", "of another shape: "},
		{"\"spatial_compression_ratio\": 4", "\"spatial_compression_ratio\": 6",
			"spatial_compression_ratio: expected a power of two, got 6"},
		{"\"temporal_compression_ratio\": 2", "\"temporal_compression_ratio\": 8",
			"temporal_compression_ratio: expected a power of two up to"},
		{"\"scaling_factor\": 0.75", "\"scaling_factor\": 0", "scaling_factor: expected a positive number"},
		{"\"upsample_match_channel\": true", "\"upsample_match_channel\": 1",
			"upsample_match_channel: expected"},
		{"AutoencoderKLHunyuanVideo15", "AutoencoderKLConv3D", "spatial_compression_ratio: unknown key"},
	};

	(void)state;
	expect_refusals(of_hunyuan, cases, sizeof(cases) / sizeof(cases[0]));
}

static int open_device(void **state)
{
	(void)state;
	dev = vfm_cpu_open(&err);
	stream = dev ? dev->t->stream_new(dev, false, &err) : NULL;
	return stream && mkdtemp(folder) ? 0 : -1;
}

static int close_device(void **state)
{
	(void)state;
	dev->t->stream_free(stream);
	dev->t->dev_free(dev);
	return vfm_rm_rf(folder, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_pushes),
		cmocka_unit_test(test_strips), cmocka_unit_test(test_given), cmocka_unit_test(test_ahead),
		cmocka_unit_test(test_lengths), cmocka_unit_test(test_identity), cmocka_unit_test(test_odd_release),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_refused_ltx),
		cmocka_unit_test(test_refused_hunyuan)};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
