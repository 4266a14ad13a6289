/* The vision tower of CLIP: values of transformers, Pillow and PyTorch, devices, identity, files that do not fit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "async_mock.h"
#include "ok.h"

#include "base/mem.h"
#include "base/philox.h"
#include "clip_vision_values.h"
#include "device/cpu/cpu.h"
#include "device/cpu/cpu_isa.h"
#include "encoder/image/clip_vision_impl.h"
#include "io/file.h"

struct tower {
	const char *name, *config; /* NULL: has none */
	struct vfm_st_tensor *tensors;
	int n, side, rows, dim;
	const float *pixel, *row;
};
#define N(x) (int)(sizeof(x) / sizeof((x)[0]))
static const struct tower of_folder = {
	"folder", folder_config, folder_tensors, N(folder_tensors), 30, 17, 48, folder_pixels, folder_rows};
static const struct tower of_wan = {"wan", NULL, wan_tensors, N(wan_tensors), 28, 17, 160, wan_pixels, wan_rows};
static const struct tower *const towers[] = {&of_folder, &of_wan};

#define PROCESSOR "{\"size\":{\"shortest_edge\":33},\"crop_size\":{\"height\":30,\"width\":30}"

static char top[] = "/tmp/vfm-test-clip-vision-XXXXXX";
static struct vfm_dev *dev;
static struct vfm_stream *stream;

/* ---- files ---- */

static void write_text(const char *dir, const char *name, const char *data, size_t n)
{
	char *path = vfm_strfmt("%s/%s", dir, name);

	OK(vfm_write_file(path, data, n, &err));
	free(path);
}

/* What is wrong with the tensors; `= {0}`: nothing. */
struct fault {
	const char *skip, *other_shape, *extra; /* names of tensors */
	size_t cut;                             /* bytes that the file lacks at its end */
	enum vfm_dtype dtype;                   /* VFM_F32 is 0 */
};

/* Appends a tensor's values (clip_vision_values.h), as dtype. */
static void add_values(struct vfm_buf *b, const struct vfm_st_tensor *t)
{
	const struct vfm_rng rng = vfm_rng_stream(1, 0, vfm_fnv64(t->name, strlen(t->name)), VFM_RNG_INIT);
	const size_t len = strlen(t->name), es = vfm_dtype_size(t->dtype);
	const bool gain = strstr(t->name, "norm") && len > 6 && !strcmp(t->name + len - 6, "weight");

	for (uint64_t k = 0; k < (t->end - t->begin) / es; k++) {
		const double x = vfm_rng_normal(&rng, k);
		const float v = (float)(gain ? 1 + 0.1 * x : 0.1 * x);
		char as[4];

		vfm_dtype_convert(t->dtype, as, VFM_F32, &v, 1);
		vfm_buf_add(b, as, es);
	}
}

static void write_tensors(const struct tower *g, const char *dir, struct fault f)
{
	struct vfm_st_tensor t[128];
	struct vfm_buf b = {0};
	int n = 0;

	for (int i = 0; i < g->n; i++)
		if (!f.skip || strcmp(g->tensors[i].name, f.skip) != 0) {
			t[n] = g->tensors[i];
			t[n].dtype = f.dtype;
			if (f.other_shape && !strcmp(t[n].name, f.other_shape))
				t[n].shape[0]++;
			n++;
		}
	if (f.extra)
		t[n++] = (struct vfm_st_tensor){.name = (char *)(uintptr_t)f.extra, .ndim = 1, .shape = {1}};
	vfm_st_layout(t, (size_t)n, NULL, 0, &b);
	for (int i = 0; i < n; i++)
		add_values(&b, &t[i]);
	write_text(dir, "model.safetensors", b.data, b.len - f.cut);
	vfm_buf_release(&b);
}

static char *write_tower(const struct tower *g, const char *name, struct fault f)
{
	char *dir = vfm_strfmt("%s/%s", top, name);

	mkdir(dir, 0700);
	write_tensors(g, dir, f);
	if (g->config) {
		write_text(dir, "config.json", g->config, strlen(g->config));
		write_text(dir, "preprocessor_config.json", PROCESSOR "}", strlen(PROCESSOR) + 1);
	}
	return dir;
}

static uint8_t *make_picture(int i)
{
	const size_t n = (size_t)sizes[i][0] * (size_t)sizes[i][1] * 3;
	uint8_t *rgb = vfm_malloc(n);

	for (size_t k = 0; k < n; k++)
		rgb[k] = (uint8_t)((37 * k + 11 * k * k + k / 101) % 256);
	return rgb;
}

static struct vfm_clip_vision *open_on(struct vfm_stream *s, const char *dir)
{
	struct vfm_clip_vision *v;

	OK(vfm_clip_vision_open(&v, s, dir, &err));
	return v;
}

/* ---- values ---- */

/* Returns the largest difference of every KEPT-th of n values, which follow `before` others, from `want`. */
static double largest_difference(const float *got, const float *want, size_t before, size_t n)
{
	double most = 0;

	for (size_t i = (KEPT - before % KEPT) % KEPT; i < n; i += KEPT)
		most = fmax(most, fabs((double)got[i] - (double)want[(before + i) / KEPT]));
	return most;
}

static void compare_tower(const struct tower *g, struct vfm_clip_vision *v, double pixel_limit, double row_limit)
{
	const size_t n_pixels = 3 * (size_t)g->side * (size_t)g->side, n_rows = (size_t)g->rows * (size_t)g->dim;
	float *pixels = vfm_calloc(n_pixels, 4), *rows = vfm_calloc(n_rows, 4);

	assert_int_equal(vfm_clip_vision_id(v)->rows, g->rows);
	assert_int_equal(vfm_clip_vision_id(v)->dim, g->dim);
	for (int i = 0; i < PICTURES; i++) {
		uint8_t *rgb = make_picture(i);

		OK(vision_picture_pixels(&v->picture, rgb, sizes[i][0], sizes[i][1], pixels, &err));
		assert_true(largest_difference(pixels, g->pixel, (size_t)i * n_pixels, n_pixels) <= pixel_limit);
		OK(vfm_clip_vision_encode(v, rgb, sizes[i][0], sizes[i][1], rows, &err));
		assert_true(largest_difference(rows, g->row, (size_t)i * n_rows, n_rows) < row_limit);
		free(rgb);
	}
	free(pixels);
	free(rows);
}

/* The bits of Pillow, and f32 near those of float64 on each instruction set; then weights in half precision. */
static void test_values(void **state)
{
	char *before = getenv("VFM_CPU_ISA") ? vfm_strdup(getenv("VFM_CPU_ISA")) : NULL;

	(void)state;
	for (int i = 0; i < 2; i++) {
		char *dir = write_tower(towers[i], towers[i]->name, (struct fault){0});
		struct vfm_clip_vision *v;

		for (int isa = 0; isa <= (int)vfm_isa_best(); isa++) {
			struct vfm_dev *d;
			struct vfm_stream *s;

			setenv("VFM_CPU_ISA", vfm_isa_name((enum vfm_isa)isa), 1);
			d = vfm_cpu_open(&err);
			s = d->t->stream_new(d, false, &err);
			v = open_on(s, dir);
			compare_tower(towers[i], v, i ? 4e-6 : 0, 2e-5);
			vfm_clip_vision_close(v);
			assert_int_equal(d->mem_now, 0);
			d->t->stream_free(s);
			d->t->dev_free(d);
		}
		free(dir);
		dir = write_tower(towers[i], "half", (struct fault){.dtype = i ? VFM_BF16 : VFM_F16});
		v = open_on(stream, dir);
		compare_tower(towers[i], v, i ? 4e-6 : 0, i ? 0.15 : 0.006);
		vfm_clip_vision_close(v);
		free(dir);
	}
	if (before)
		setenv("VFM_CPU_ISA", before, 1);
	else
		unsetenv("VFM_CPU_ISA");
	free(before);
}

/* A picture has the same bits after others, after the weights have left the device, and on an asynchronous device. */
static void test_bits(void **state)
{
	char *dir = write_tower(&of_folder, "bits", (struct fault){0});
	struct vfm_dev *mock_dev = mock_open(true, &err);
	struct vfm_stream *s = mock_dev->t->stream_new(mock_dev, false, &err);
	struct vfm_clip_vision *cpu = open_on(stream, dir), *async = open_on(s, dir);
	const size_t n = (size_t)of_folder.rows * (size_t)of_folder.dim * sizeof(float);
	float *x[PICTURES], *y = vfm_malloc(n);
	uint8_t *rgb[PICTURES];

	(void)state;
	for (int i = 0; i < PICTURES; i++) {
		rgb[i] = make_picture(i);
		x[i] = vfm_malloc(n);
		OK(vfm_clip_vision_encode(cpu, rgb[i], sizes[i][0], sizes[i][1], x[i], &err));
	}
	for (int i = PICTURES - 1; i >= 0; i--) {
		OK(vfm_clip_vision_encode(cpu, rgb[i], sizes[i][0], sizes[i][1], y, &err));
		assert_memory_equal(x[i], y, n);
		OK(vfm_clip_vision_encode(async, rgb[i], sizes[i][0], sizes[i][1], y, &err));
		assert_memory_equal(x[i], y, n);
		assert_true(mock_dev->mem_now > 0);
		vfm_clip_vision_unload(cpu);
		vfm_clip_vision_unload(async);
		assert_int_equal(mock_dev->mem_now, 0);
		free(x[i]);
		free(rgb[i]);
	}
	vfm_clip_vision_close(cpu);
	vfm_clip_vision_close(async);
	assert_int_equal(mock_dev->mem_now, 0);
	s->dev->t->stream_free(s);
	mock_dev->t->dev_free(mock_dev);
	free(y);
	free(dir);
}

static void test_sizes(void **state)
{
	char *dir = write_tower(&of_folder, "sizes", (struct fault){0});
	struct vfm_clip_vision *v = open_on(stream, dir);
	float *rows = vfm_malloc((size_t)of_folder.rows * (size_t)of_folder.dim * sizeof(*rows));
	uint8_t *rgb = vfm_calloc(VISION_PICTURE_MAX, 3);

	(void)state;
	OK(vfm_clip_vision_encode(v, rgb, 1, VISION_PICTURE_MAX, rows, &err));
	OK(vfm_clip_vision_encode(v, rgb, VISION_PICTURE_MAX, 1, rows, &err));
	assert_int_equal(vfm_clip_vision_encode(v, rgb, 0, 5, rows, &err), VFM_EINPUT);
	assert_int_equal(vfm_clip_vision_encode(v, rgb, VISION_PICTURE_MAX + 1, 1, rows, &err), VFM_EINPUT);
	assert_non_null(strstr(err.msg, "a picture of 1 x 65537"));
	vfm_clip_vision_close(v);
	free(rows);
	free(rgb);
	free(dir);
}

/* ---- identity ---- */

static void expect_identity(const char *dir, const char *was, bool same)
{
	struct vfm_clip_vision *v = open_on(stream, dir);

	assert_true(same == !strcmp(vfm_clip_vision_id(v)->sha256, was));
	vfm_clip_vision_close(v);
}

static void test_identity(void **state)
{
	static const char *const others[] = {",\"image_mean\":[0.5,0.5,0.5]", ",\"image_std\":[0.5,0.5,0.5]",
		",\"rescale_factor\":0.0039", ",\"size\":30", ",\"size\":{\"height\":30,\"width\":30}"};
	static const char *const equal[] = {"", ",\"do_convert_rgb\":true,\"resample\":3", ",\"processor_class\":\"X\"",
		",\"later_key\":null", ",\"image_mean\":[0.48145466,0.4578275,0.40821073]"};
	char *dir = write_tower(&of_folder, "identity", (struct fault){0}), was[VFM_SHA256_HEX];
	struct vfm_clip_vision *v = open_on(stream, dir);

	(void)state;
	assert_string_equal(vfm_clip_vision_id(v)->name, "clip-vision-3x48-f32");
	assert_string_equal(vfm_clip_vision_id(v)->version, "1");
	strcpy(was, vfm_clip_vision_id(v)->sha256);
	vfm_clip_vision_close(v);
	for (int i = 0; i < N(others) + N(equal); i++) {
		const char *more = i < N(others) ? others[i] : equal[i - N(others)];
		const bool size = strstr(more, "\"size\"");
		char *text = vfm_strfmt("{\"crop_size\":30%s%s}", size ? "" : ",\"size\":33", more);

		write_text(dir, "preprocessor_config.json", text, strlen(text));
		expect_identity(dir, was, i >= N(others));
		free(text);
	}
	write_tensors(&of_folder, dir, (struct fault){.dtype = VFM_F16});
	expect_identity(dir, was, false);
	free(dir);
	dir = write_tower(&of_folder, "identity-act", (struct fault){0});
	{
		char *text = vfm_strfmt("%.*s,\"hidden_act\":\"gelu\"}", (int)strlen(folder_config) - 1, folder_config);

		write_text(dir, "config.json", text, strlen(text));
		free(text);
	}
	expect_identity(dir, was, false);
	free(dir);
}

/* ---- what does not fit ---- */

static void expect_refusal(const char *dir, const char *message)
{
	struct vfm_clip_vision *v = NULL;

	assert_int_equal(vfm_clip_vision_open(&v, stream, dir, &err), VFM_EUSAGE);
	if (!strstr(err.msg, message))
		fail_msg("'%s' lacks '%s'", err.msg, message);
	assert_int_equal(dev->mem_now, 0);
}

static void test_bad_tensors(void **state)
{
	static const struct {
		struct fault f;
		const char *message;
	} faults[] = {
		{{.skip = "vision_model.encoder.layers.1.self_attn.k_proj.bias"},
			"missing: vision_model.encoder.layers.1.self_attn.k_proj.bias"},
		{{.skip = "vision_model.encoder.layers.2.mlp.fc2.weight"}, "layers.2.mlp.fc2.weight"},
		{{.skip = "vision_model.post_layernorm.weight"}, "vision_model.post_layernorm.weight"},
		{{.other_shape = "vision_model.embeddings.position_embedding.weight"},
			"[18, 48] in the place of [17, 48]"},
		{{.other_shape = "vision_model.encoder.layers.0.mlp.fc1.weight"},
			"fc1.weight [57, 48] in the place of [56, 48]"},
		{{.extra = "vision_model.encoder.layers.3.layer_norm1.weight"},
			"unknown: vision_model.encoder.layers.3.layer_norm1.weight"},
		{{.cut = 5}, "model.safetensors"},
	};

	(void)state;
	for (int i = 0; i < N(faults); i++) {
		char *dir = write_tower(&of_folder, "bad", faults[i].f);

		expect_refusal(dir, faults[i].message);
		free(dir);
	}
	for (int i = 0; i < 3; i++) {
		static const char *const skip[] = {
			"visual.patch_embedding.weight", "visual.pos_embedding", "visual.transformer.0.mlp.0.weight"};
		char *dir = write_tower(&of_wan, "bad-wan", (struct fault){.skip = skip[i]});

		expect_refusal(dir, i < 2 ? skip[i] : "visual.transformer.0");
		free(dir);
	}
}

static void test_bad_config(void **state)
{
	static const char *const faults[][2] = {
		{"\"model_type\":\"siglip_vision_model\"", "model_type: 'siglip_vision_model' is not the vision tower"},
		{"\"model_type\":\"dinov2\"", "'dinov2'"},
		{"\"model_type\":\"clip\"", "vision_config: expected an object"},
		{"\"image_size\":30", "config.json.model_type"},
		{"\"model_type\":\"clip_vision_model\",\"hidden_act\":\"relu\"", "hidden_act: 'relu'"},
		{"\"model_type\":\"clip_vision_model\",\"num_channels\":1", "num_channels: expected 3"},
		{"\"model_type\":\"clip_vision_model\",\"hidden_size\":\"a\"", "config.json.hidden_size"},
		{"\"model_type\":\"clip_vision_model\",\"num_attention_heads\":5", "5 heads"},
		{"\"model_type\":\"clip_vision_model\",\"num_attention_heads\":4,\"hidden_size\":48", "multiple of 8"},
		{"\"model_type\":\"clip_vision_model\",\"layer_norm_eps\":-1", "layer_norm_eps"},
		{"\"model_type\":\"clip_vision_model\",\"image_size\":5,\"patch_size\":7", "patch_size"},
		{"\"model_type\":\"clip_vision_model\",\"num_hidden_layers\":2000", "num_hidden_layers"},
	};
	char *dir = write_tower(&of_folder, "bad-config", (struct fault){0}), *path;

	(void)state;
	for (int i = 0; i < N(faults); i++) {
		char *text = vfm_strfmt("{%s}", faults[i][0]);

		write_text(dir, "config.json", text, strlen(text));
		expect_refusal(dir, faults[i][1]);
		free(text);
	}
	path = vfm_strfmt("%s/config.json", dir);
	unlink(path);
	expect_refusal(dir, "no config.json");
	expect_refusal("/nonexistent", "/nonexistent");
	free(path);
	free(dir);
}

static void test_bad_processor(void **state)
{
	static const char *const faults[][2] = {
		{"[]", "expected an object"},
		{"{", "preprocessor_config.json"},
		{PROCESSOR ",\"do_something\":true}", "do_something: unknown key"},
		{PROCESSOR ",\"image_processor_type\":\"SiglipImageProcessor\"}", "'SiglipImageProcessor'"},
		{PROCESSOR ",\"do_resize\":false}", "do_resize: only true"},
		{PROCESSOR ",\"do_normalize\":0}", "do_normalize: only true"},
		{PROCESSOR ",\"do_pad\":true}", "do_pad: only false"},
		{PROCESSOR ",\"resample\":2}", "resample: only 3"},
		{PROCESSOR ",\"rescale_factor\":0}", "rescale_factor"},
		{PROCESSOR ",\"image_std\":[1,1,0]}", "image_std[2]"},
		{PROCESSOR ",\"image_mean\":0.5}", "image_mean: expected 3 numbers"},
		{PROCESSOR ",\"do_center_crop\":false}", "do_center_crop: false, and"},
		{PROCESSOR ",\"do_center_crop\":0}", "do_center_crop: expected true or false"},
		{"{\"size\":30}", "crop_size: 224 x 224, but image_size of the model is 30"},
		{"{\"size\":29,\"crop_size\":30}", "size: expected a shortest_edge of at least 30"},
		{"{\"size\":{\"height\":30,\"width\":31},\"crop_size\":30}", "size: expected"},
		{"{\"size\":{\"height\":30},\"crop_size\":30}", "size.width"},
		{"{\"size\":{\"longest_edge\":30},\"crop_size\":30}", "size.longest_edge: unknown key"},
		{"{\"size\":30,\"crop_size\":{\"shortest_edge\":30}}", "crop_size.shortest_edge: unknown key"},
		{"{\"size\":99999,\"crop_size\":30}", "size"},
	};
	char *dir = write_tower(&of_folder, "bad-processor", (struct fault){0}), *path;

	(void)state;
	for (int i = 0; i < N(faults); i++) {
		write_text(dir, "preprocessor_config.json", faults[i][0], strlen(faults[i][0]));
		expect_refusal(dir, faults[i][1]);
	}
	path = vfm_strfmt("%s/preprocessor_config.json", dir);
	unlink(path);
	expect_refusal(dir, "no preprocessor_config.json");
	free(path);
	free(dir);
}

/* ---- groups ---- */

static int open_device(void **state)
{
	(void)state;
	dev = vfm_cpu_open(&err);
	stream = dev ? dev->t->stream_new(dev, false, &err) : NULL;
	return stream && mkdtemp(top) ? 0 : -1;
}

static int close_device(void **state)
{
	char *command = vfm_strfmt("rm -rf '%s'", top);
	int rc = system(command);

	(void)state;
	free(command);
	dev->t->stream_free(stream);
	dev->t->dev_free(dev);
	return rc;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_bits),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_identity),
		cmocka_unit_test(test_bad_tensors),
		cmocka_unit_test(test_bad_config),
		cmocka_unit_test(test_bad_processor),
	};

	return cmocka_run_group_tests(tests, open_device, close_device);
}
