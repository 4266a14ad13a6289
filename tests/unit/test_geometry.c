/* Sizes of tokenizers: frames, latents, JSON. */
#include "ok.h"

#include <string.h>

#include "base/mem.h"
#include "io/json.h"
#include "spec/model/geometry.h"

/* clang-format off */
static const struct vfm_geometry causal = {.stride = {4, 8, 8}, .channels = 16, .first = 1, .step = 4},
	wide = {.stride = {4, 16, 16}, .channels = 48, .first = 1, .step = 4, .max_frames = 81},
	deep = {.stride = {8, 32, 32}, .channels = 128, .first = 1, .step = 8, .scaling = "mean-std"},
	stills = {.stride = {1, 8, 8}, .channels = 4, .first = 1},
	whole = {.stride = {4, 8, 8}, .channels = 16, .first = 4, .step = 4},
	pairs = {.stride = {4, 8, 16}, .channels = 8, .first = 5, .step = 8, .max_frames = 20},
	padded = {.stride = {4, 8, 8}, .channels = 16, .first = 4, .step = 4, .pad = true},
	capped = {.stride = {4, 8, 8}, .channels = 16, .first = 1, .step = 4, .max_frames = 12, .pad = true},
	one = {.stride = {4, 8, 8}, .channels = 16, .first = 4, .pad = true};
/* clang-format on */

/* The smallest count of first + k step that is >= frames, by counting; 0 if the maximum excludes it. */
static int64_t count_above(const struct vfm_geometry *g, int64_t frames, int64_t *k)
{
	int64_t count = g->first;

	for (*k = 0; count < frames && g->step; ++*k)
		count += g->step;
	return count < frames || (g->max_frames && count > g->max_frames) ? 0 : count;
}

static void test_counts(void **state)
{
	static const struct vfm_geometry *const all[] = {
		&causal, &wide, &deep, &stills, &whole, &pairs, &padded, &capped, &one};

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		const struct vfm_geometry *g = all[i];
		int64_t fits = 0, in_patches[4] = {0};

		for (int64_t f = 0; f < 200; f++) {
			int64_t k, count = count_above(g, f, &k);
			bool takes = f > 0 && count && (g->pad || count == f);

			if (takes)
				fits = f;
			assert_int_equal(vfm_geometry_fit(g, f), fits);
			for (int32_t p = 1; p < 4; p++) {
				if (takes && (1 + k * (g->step / g->stride[0])) % p == 0)
					in_patches[p] = f;
				assert_int_equal(vfm_geometry_fit_patch(g, f, p), in_patches[p]);
			}
			assert_int_equal(
				vfm_geometry_latent_frames(g, f), takes ? 1 + k * (g->step / g->stride[0]) : 0);
			if (takes)
				assert_int_equal(vfm_geometry_pictures(g, vfm_geometry_latent_frames(g, f)), count);
		}
	}
	assert_int_equal(vfm_geometry_fit(&causal, INT64_MAX), INT64_MAX - 2);
	assert_int_equal(vfm_geometry_fit(&padded, INT64_MAX), INT64_MAX);
	assert_int_equal(vfm_geometry_fit(&causal, INT64_MIN), 0);
}

static void test_known_values(void **state)
{
	int32_t dims[3], multiple[2];

	(void)state;
	OK(vfm_geometry_latent(&causal, 81, 480, 832, dims, &err));
	assert_true(dims[0] == 21 && dims[1] == 60 && dims[2] == 104);
	OK(vfm_geometry_latent(&deep, 121, 512, 768, dims, &err));
	assert_true(dims[0] == 16 && dims[1] == 16 && dims[2] == 24);
	OK(vfm_geometry_latent(&stills, 1, 512, 512, dims, &err));
	assert_true(dims[0] == 1 && dims[1] == 64 && dims[2] == 64);
	OK(vfm_geometry_latent(&pairs, 13, 16, 32, dims, &err));
	assert_true(dims[0] == 3 && dims[1] == 2 && dims[2] == 2);
	OK(vfm_geometry_latent(&padded, 1, 8, 8, dims, &err));
	assert_int_equal(dims[0], 1);
	vfm_geometry_multiple(&pairs, (const int32_t[3]){1, 2, 3}, multiple);
	assert_true(multiple[0] == 16 && multiple[1] == 48);
	assert_true(vfm_geometry_is_known(&stills) && !vfm_geometry_is_known(&(struct vfm_geometry){0}));
	assert_true(vfm_geometry_equal(&wide, &wide) && !vfm_geometry_equal(&whole, &padded));
}

static void test_refused_sizes(void **state)
{
	static const struct {
		const struct vfm_geometry *g;
		int64_t frames, height, width;
		const char *says;
	} bad[] = {
		{&causal, 16, 64, 64, "16 frames: the tokenizer takes 1 + 4n frames"},
		{&wide, 85, 64, 64, "85 frames: the tokenizer takes 1 + 4n frames, at most 81"},
		{&stills, 2, 64, 64, "2 frames: the tokenizer takes 1 frame"},
		{&whole, 1, 64, 64, "1 frames: the tokenizer takes 4n frames"},
		{&capped, 13, 64, 64, "13 frames: the tokenizer takes any number of frames, at most 9"},
		{&padded, 0, 64, 64, "0 frames: the tokenizer takes any number of frames"},
		{&deep, 9, 64, 48, "48x64 pixels: the tokenizer needs a width that is a multiple of 32"},
		{&pairs, 5, 12, 32, "a height that is a multiple of 8"},
		{&causal, 1, 0, 8, "8x0 pixels"},
		{&causal, 1, 8, -8, "-8x8 pixels"},
	};
	int32_t dims[3];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(vfm_geometry_latent(bad[i].g, bad[i].frames, bad[i].height, bad[i].width, dims, &err),
			VFM_EUSAGE);
		if (!strstr(err.msg, bad[i].says))
			fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
	}
}

static void test_json(void **state)
{
	static const struct vfm_geometry *const all[] = {&causal, &wide, &deep, &stills, &whole, &padded};
	struct vfm_geometry g;
	char text[VFM_GEOMETRY_TEXT];
	json_t *o;

	(void)state;
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		o = vfm_geometry_json(all[i]);
		OK(vfm_geometry_from_json(&g, o, "g", &err));
		assert_true(vfm_geometry_equal(&g, all[i]));
		json_decref(o);
	}
	o = vfm_geometry_json(&pairs);
	OK(vfm_geometry_from_json(&g, o, "g", &err));
	assert_int_equal(g.max_frames, 13); /* 20 is no count */
	json_decref(o);
	assert_string_equal(
		vfm_geometry_text(&deep, text), "stride 8x32x32, 128 channels, 1 + 8n frames, scaling mean-std");
	assert_string_equal(vfm_geometry_text(&wide, text), "stride 4x16x16, 48 channels, 1 + 4n frames, at most 81");
}

#define GOOD "\"stride\":[4,8,8],\"channels\":16,\"frames\":[1,4]"

static void test_bad_json(void **state)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"[]", "g: expected an object"},
		{"{}", "g.stride: expected an array of 3 integers"},
		{"{\"stride\":[4,8],\"channels\":16,\"frames\":[1,4]}", "g.stride: expected an array"},
		{"{\"stride\":[4,8,0],\"channels\":16,\"frames\":[1,4]}", "g.stride[2]: expected an integer from 1"},
		{"{\"stride\":[4,8,8.5],\"channels\":16,\"frames\":[1,4]}", "g.stride[2]"},
		{"{\"stride\":[4,8,257],\"channels\":16,\"frames\":[1,4]}", "g.stride[2]"},
		{"{\"stride\":[4,8,8],\"frames\":[1,4]}", "g.channels: missing"},
		{"{\"stride\":[4,8,8],\"channels\":0,\"frames\":[1,4]}", "g.channels"},
		{"{\"stride\":[4,8,8],\"channels\":4097,\"frames\":[1,4]}", "g.channels"},
		{"{\"stride\":[4,8,8],\"channels\":16}", "g.frames: expected an array of 2 integers"},
		{"{\"stride\":[4,8,8],\"channels\":16,\"frames\":[0,4]}", "g.frames[0]"},
		{"{\"stride\":[4,8,8],\"channels\":16,\"frames\":[1,-4]}", "g.frames[1]"},
		{"{\"stride\":[4,8,8],\"channels\":16,\"frames\":[1,6]}",
			"g.frames[1]: expected a multiple of the stride 4"},
		{"{" GOOD ",\"max_frames\":0}", "g.max_frames"},
		{"{" GOOD ",\"max_frames\":1e9}", "g.max_frames"},
		{"{\"stride\":[4,8,8],\"channels\":16,\"frames\":[9,4],\"max_frames\":8}",
			"g.max_frames: expected at least"},
		{"{" GOOD ",\"pad\":1}", "g.pad: expected true or false"},
		{"{" GOOD ",\"scaling\":7}", "g.scaling"},
		{"{" GOOD ",\"scaling\":\"a b\"}", "g.scaling: expected at most 31 characters"},
		{"{" GOOD ",\"scaling\":\"12345678901234567890123456789012\"}", "g.scaling"},
	};
	struct vfm_geometry g;
	json_t *o = json_loads("{" GOOD ",\"max_frames\":null,\"scaling\":\"\",\"range\":[-20,20]}", 0, NULL);

	(void)state;
	OK(vfm_geometry_from_json(&g, o, "g", &err));
	assert_true(vfm_geometry_equal(&g, &causal));
	json_decref(o);
	assert_int_equal(vfm_geometry_from_json(&g, NULL, "g", &err), VFM_EUSAGE);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		o = json_loads(bad[i].text, 0, NULL);
		assert_non_null(o);
		assert_int_equal(vfm_geometry_from_json(&g, o, "g", &err), VFM_EUSAGE);
		assert_false(vfm_geometry_is_known(&g));
		if (!strstr(err.msg, bad[i].says))
			fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
		json_decref(o);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_known_values),
		cmocka_unit_test(test_refused_sizes),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_bad_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
