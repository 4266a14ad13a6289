/* ops_conv.c - convolutions of frames: clips in parts, upsampled frames, packed weights, add in place, NaN and
 * infinity.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "ops_test.h"

/* Clips of T frames; a kernel of 3 x 3 x 3, frames of equal size before and after. */
enum { T = 6, H = 5, W = 9, C_MAX = 70, O_MAX = 40, PIXELS = H * W };

static float x[T * PIXELS * C_MAX], w[27 * C_MAX * O_MAX], bias[O_MAX], whole[T * PIXELS * O_MAX],
	y[T * PIXELS * O_MAX];

/* Fills n elements; in bf16 the array holds half as many bytes. */
static void fill_elements(float *p, enum vfm_dtype t, int64_t n, uint64_t id)
{
	struct vfm_rng rng = vfm_rng_stream(5, 6, id, VFM_RNG_TEST);

	for (int64_t i = 0; i < n; i++) {
		float v = vfm_rng_normal(&rng, (uint64_t)i);

		if (t == VFM_F32)
			p[i] = v;
		else
			((uint16_t *)p)[i] = vfm_f32_to_bf16(v);
	}
}

static void *frame_at(float *p, enum vfm_dtype t, int64_t frame, int64_t channels)
{
	return (char *)p + (size_t)(frame * PIXELS * channels) * vfm_dtype_size(t);
}

/* Frames [t0, t1) of the clip, with the two frames before them: those of the clip, else zeros. */
static struct vfm_conv3d clip_part(enum vfm_dtype t, int64_t c, int64_t o, int64_t t0, int64_t t1)
{
	int64_t past = t0 < 2 ? t0 : 2;
	struct vfm_conv3d a = {
		.x = vfm_t4(frame_at(x, t, t0, c), t, t1 - t0, H, W, c),
		.weight = vfm_t3(w, t, o, 27, c),
		.bias = vfm_t1(bias, VFM_F32, o),
		.y = vfm_t4(frame_at(y, t, t0, o), t, t1 - t0, H, W, o),
		.kernel = {3, 3, 3},
		.stride = {1, 1, 1},
		.zeros = (int)(2 - past),
		.pad = {1, 1, 1, 1},
	};

	if (past)
		a.past = vfm_t4(frame_at(x, t, t0 - past, c), t, past, H, W, c);
	return a;
}

static void run_part(int level, struct vfm_conv3d *a)
{
	struct vfm_err err = {0};

	if (vfm_op_conv3d(levels[level].s, a, &err) < 0)
		fail_msg("%s: %s", levels[level].name, err.msg);
}

/* Packs the weight of a on devices that do so; the caller frees the memory. */
static void *pack_weight(int level, struct vfm_conv3d *a, size_t *bytes)
{
	struct vfm_err err = {0};
	void *packed;

	*bytes = vfm_conv3d_packed_size(levels[level].s, a);
	if (!*bytes)
		return NULL;
	packed = vfm_dev_alloc(levels[level].s, *bytes, "weights", &err);
	assert_non_null(packed);
	assert_int_equal(vfm_conv3d_pack(levels[level].s, a, packed, &err), 0);
	return packed;
}

/* A clip in parts has the bits of the whole clip; so has one with packed weights. */
static void check_parts(int level, enum vfm_dtype t, int64_t c, int64_t o)
{
	static const int ends[][T] = {{1, 2, 3, 4, 5, 6}, {1, 5, 6}, {2, 2, 6}, {4, 6}};
	struct vfm_conv3d a = clip_part(t, c, o, 0, T);
	size_t bytes = vfm_nbytes(&a.y), packed_bytes;
	void *packed = pack_weight(level, &a, &packed_bytes);

	a.y.data = whole;
	run_part(level, &a);
	for (size_t k = 0; k < sizeof(ends) / sizeof(ends[0]); k++) {
		memset(y, 0xff, bytes);
		for (int t0 = 0, i = 0; t0 < T; t0 = ends[k][i++]) {
			a = clip_part(t, c, o, t0, ends[k][i]);
			a.packed = packed && k % 2;
			if (a.packed)
				a.weight.data = packed;
			run_part(level, &a);
		}
		if (memcmp(whole, y, bytes) != 0)
			fail_msg("%s: %s, %d to %d channels: parts %zu differ from the whole clip", levels[level].name,
				vfm_dtype_name(t), (int)c, (int)o, k);
	}
	if (packed)
		vfm_dev_free(levels[level].s, packed, packed_bytes);
}

void test_conv_parts(void **state)
{
	static const int64_t channels[][2] = {{3, 40}, {70, 5}, {32, 33}, {16, 16}, {48, 8}};

	(void)state;
	for (int i = 0; i < n_levels; i++)
		for (int t = 0; has_op(i, VFM_OP_conv3d) && t < 2; t++) {
			enum vfm_dtype dt = t ? VFM_BF16 : VFM_F32;

			fill_elements(x, dt, T * PIXELS * C_MAX, 1);
			fill_elements(w, dt, 27 * C_MAX * O_MAX, 2);
			fill_elements(bias, VFM_F32, O_MAX, 3);
			for (size_t k = 0; k < sizeof(channels) / sizeof(channels[0]); k++)
				check_parts(i, dt, channels[k][0], channels[k][1]);
		}
}

/* add may be y. */
void test_conv_in_place(void **state)
{
	static float add[T * PIXELS * O_MAX];

	(void)state;
	fill_elements(x, VFM_F32, T * PIXELS * C_MAX, 1);
	fill_elements(w, VFM_F32, 27 * C_MAX * O_MAX, 2);
	fill_elements(add, VFM_F32, T * PIXELS * O_MAX, 4);
	for (int i = 0; i < n_levels; i++) {
		struct vfm_conv3d a = clip_part(VFM_F32, C_MAX, O_MAX, 0, T);

		if (!has_op(i, VFM_OP_conv3d))
			continue;
		a.y.data = whole;
		a.add = a.y, a.add.data = add;
		run_part(i, &a);
		memcpy(y, add, sizeof(y));
		a.y.data = a.add.data = y;
		run_part(i, &a);
		assert_memory_equal(whole, y, sizeof(y));
	}
}

/* The CPU packs weights, at least those of bf16; a device that does not refuses them.  (Behind VFM_TEST_DEVICE stands
 * the CPU itself, too.) */
void test_conv_packed(void **state)
{
	(void)state;
	for (int i = 0; !device && i < n_levels; i++) {
		struct vfm_conv3d a = clip_part(VFM_BF16, C_MAX, O_MAX, 0, T);
		struct vfm_err err = {0};

		if (!has_op(i, VFM_OP_conv3d))
			continue;
		if (i < n_isa)
			assert_true(vfm_conv3d_packed_size(levels[i].s, &a) >= vfm_nbytes(&a.weight));
		if (vfm_conv3d_packed_size(levels[i].s, &a))
			continue;
		a.packed = true;
		assert_int_equal(vfm_op_conv3d(levels[i].s, &a, &err), VFM_EUSAGE);
		assert_int_equal(vfm_conv3d_pack(levels[i].s, &a, y, &err), VFM_EUSAGE);
	}
}

/* With `up` the result has the bits of the convolution of frames that upsample made. */
static void check_up(int level, enum vfm_dtype t)
{
	enum { C = 20, O = 33, FRAMES = 3, PAST = 2 };
	static float big[FRAMES * 4 * PIXELS * C], want[4 * PIXELS * O], got[4 * PIXELS * O];
	struct vfm_err err = {0};
	struct vfm_conv3d a = clip_part(t, C, O, PAST, FRAMES), b;
	struct vfm_upsample up = {.x = vfm_t4(x, t, FRAMES, H, W, C), .y = vfm_t4(big, t, FRAMES, 2 * H, 2 * W, C)};

	a.up = 1;
	a.y = vfm_t4(got, t, 1, 2 * H, 2 * W, O);
	b = a;
	b.up = 0;
	b.past = vfm_t4(big, t, PAST, 2 * H, 2 * W, C);
	b.x = vfm_t4((char *)big + PAST * b.past.stride[0] * (int64_t)vfm_dtype_size(t), t, 1, 2 * H, 2 * W, C);
	b.y.data = want;
	assert_int_equal(vfm_op_upsample(levels[level].s, &up, &err), 0);
	run_part(level, &a);
	run_part(level, &b);
	assert_memory_equal(got, want, vfm_nbytes(&a.y));
}

void test_conv_up(void **state)
{
	(void)state;
	for (int i = 0; i < n_levels; i++)
		for (int t = 0; has_op(i, VFM_OP_conv3d) && has_op(i, VFM_OP_upsample) && t < 2; t++) {
			enum vfm_dtype dt = t ? VFM_BF16 : VFM_F32;

			fill_elements(x, dt, T * PIXELS * C_MAX, 1);
			fill_elements(w, dt, 27 * C_MAX * O_MAX, 2);
			fill_elements(bias, VFM_F32, O_MAX, 3);
			check_up(i, dt);
		}
}

/* One element of x that is not finite makes the pixels around it, and those of the next two frames, NaN or infinite,
 * and changes no other bit. */
static void check_spread(int level, enum vfm_dtype t, float value)
{
	enum { C = 40, O = 35, FRAME = 1, ROW = 2, COL = 0 };
	struct vfm_conv3d a = clip_part(t, C, O, 0, T);
	size_t at = (size_t)((FRAME * H + ROW) * W + COL) * C + 37, size = vfm_dtype_size(t);
	uint16_t half = vfm_f32_to_bf16(value);

	a.y.data = whole;
	run_part(level, &a);
	memcpy((char *)x + at * size, t == VFM_F32 ? (void *)&value : (void *)&half, size);
	a.y.data = y;
	run_part(level, &a);
	for (int64_t i = 0; i < vfm_numel(&a.y); i++) {
		int64_t p = i / O, f = p / PIXELS, h = p % PIXELS / W, col = p % W;
		bool near = f >= FRAME && f <= FRAME + 2 && h >= ROW - 1 && h <= ROW + 1 && col <= COL + 1;
		double v = operand_get(&a.y, (char *)y, i), was = operand_get(&a.y, (char *)whole, i);

		if (near ? !(isnan(value) ? isnan(v) : isinf(v)) : v != was)
			fail_msg("%s: %s, %f in x: element %ld is %f, was %f", levels[level].name, vfm_dtype_name(t),
				(double)value, (long)i, v, was);
	}
}

void test_conv_not_finite(void **state)
{
	(void)state;
	for (int i = 0; i < n_levels; i++)
		for (int k = 0; has_op(i, VFM_OP_conv3d) && k < 4; k++) {
			enum vfm_dtype dt = k % 2 ? VFM_BF16 : VFM_F32;

			fill_elements(x, dt, T * PIXELS * C_MAX, 1);
			fill_elements(w, dt, 27 * C_MAX * O_MAX, 2);
			fill_elements(bias, VFM_F32, O_MAX, 3);
			check_spread(i, dt, k / 2 ? INFINITY : NAN);
		}
}
