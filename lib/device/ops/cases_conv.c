/* cases_conv.c - convolutions of frames: kernels, strides, pads and frames before x as video tokenizers have them. */
#include "device/ops/cases_impl.h"

enum { BIAS = 1, ADD = 2, UP = 4 };

/* Geometry of a case. */
struct conv_shape {
	int kernel[3], stride[3], zeros, past, pad[4];
};

/* "same" convolutions of kt x kh x kw, with kt - 1 frames before x; `past` of them are given. */
static struct conv_shape same_size(int kt, int kh, int kw, int past)
{
	return (struct conv_shape){{kt, kh, kw}, {1, 1, 1}, kt - 1 - past, past, {kh / 2, kh / 2, kw / 2, kw / 2}};
}

static struct vfm_case *add_conv(struct vfm_cases *l, unsigned flags, enum vfm_dtype t, const struct conv_shape *g,
	const int size[3], int64_t c, int64_t o, unsigned with)
{
	struct vfm_case *k = vfm_case_add(l, VFM_OP_conv3d, flags,
		"%s/%dx%dx%d/s%d%d%d/z%dp%d/pad%d%d%d%d/%dx%dx%dx%d-%d%s%s%s", vfm_dtype_name(t), g->kernel[0],
		g->kernel[1], g->kernel[2], g->stride[0], g->stride[1], g->stride[2], g->zeros, g->past, g->pad[0],
		g->pad[1], g->pad[2], g->pad[3], size[0], size[1], size[2], (int)c, (int)o, with & UP ? "/up" : "",
		with & BIAS ? "/bias" : "", with & ADD ? "/add" : "");
	struct vfm_conv3d *a = &k->args.conv3d;

	*a = (struct vfm_conv3d){.zeros = g->zeros, .x = vfm_t4(NULL, t, size[0], size[1], size[2], c)};
	a->up = (with & UP) != 0;
	for (int i = 0; i < 4; i++)
		a->pad[i] = g->pad[i];
	for (int i = 0; i < 3; i++)
		a->kernel[i] = g->kernel[i], a->stride[i] = g->stride[i];
	if (g->past)
		a->past = vfm_t4(NULL, t, g->past, size[1], size[2], c);
	a->weight = vfm_t3(NULL, t, o, g->kernel[0] * g->kernel[1] * g->kernel[2], c);
	if (with & BIAS)
		a->bias = vec(VFM_F32, o);
	a->y = vfm_t4(NULL, t, vfm_conv3d_size(a, 0), vfm_conv3d_size(a, 1), vfm_conv3d_size(a, 2), o);
	if (with & ADD)
		a->add = a->y;
	return k;
}

/* Channels of x and of y: few, one odd, a few more than a vector, several vectors. */
static void channel_cases(struct vfm_cases *l, enum vfm_dtype t)
{
	static const int n[][2] = {{3, 96}, {96, 3}, {12, 12}, {16, 32}, {32, 16}, {1, 1}, {5, 7}, {33, 47}, {48, 64},
		{130, 35}, {96, 96}};
	static const int size[3] = {2, 5, 7};

	for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++) {
		struct conv_shape g = same_size(3, 3, 3, (int)i % 3);

		add_conv(l, VFM_CASE_TEST, t, &g, size, n[i][0], n[i][1], (unsigned)i % 4);
		g = same_size(1, 1, 1, 0);
		add_conv(l, VFM_CASE_TEST, t, &g, size, n[i][0], n[i][1], BIAS);
	}
}

static void shape_cases(struct vfm_cases *l, enum vfm_dtype t)
{
	static const struct conv_shape of[] = {
		{{1, 3, 3}, {1, 1, 1}, 0, 0, {1, 1, 1, 1}},
		{{3, 1, 1}, {1, 1, 1}, 2, 0, {0}},
		{{3, 1, 1}, {2, 1, 1}, 0, 0, {0}}, /* downsampling in time: of Wan */
		{{3, 1, 1}, {2, 1, 1}, 0, 1, {0}},
		{{1, 3, 3}, {1, 2, 2}, 0, 0, {0, 1, 0, 1}},
		{{3, 3, 3}, {2, 2, 2}, 1, 1, {1, 1, 1, 1}},
		{{2, 5, 4}, {1, 3, 2}, 0, 1, {3, 0, 0, 2}},
		{{1, 2, 3}, {1, 1, 3}, 0, 0, {0, 0, 4, 5}},
		{{3, 3, 3}, {1, 1, 1}, 0, 2, {1, 1, 1, 1}},
	};
	static const int size[][3] = {{1, 6, 9}, {4, 11, 6}, {3, 1, 1}, {2, 9, 35}};

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		for (size_t k = 0; k < sizeof(size) / sizeof(size[0]); k++) {
			add_conv(l, VFM_CASE_TEST, t, &of[i], size[k], 20, 24, BIAS);
			add_conv(l, VFM_CASE_TEST, t, &of[i], size[k], k == 3 ? 64 : 66, 40, k % 2 ? ADD : 0);
		}
}

/* Upsampled frames: odd and even corners, strides that read some pixels once, rows of taps, several blocks. */
static void up_cases(struct vfm_cases *l, enum vfm_dtype t)
{
	static const struct conv_shape of[] = {
		{{1, 3, 3}, {1, 1, 1}, 0, 0, {1, 1, 1, 1}},
		{{1, 1, 1}, {1, 1, 1}, 0, 0, {0}},
		{{3, 3, 3}, {1, 1, 1}, 1, 1, {1, 1, 1, 1}},
		{{2, 2, 3}, {1, 2, 2}, 1, 0, {0, 1, 3, 2}},
		{{1, 4, 5}, {1, 3, 3}, 0, 0, {2, 0, 0, 4}},
		{{2, 3, 2}, {2, 1, 3}, 0, 1, {5, 5, 1, 1}},
	};
	static const int size[][3] = {{2, 5, 7}, {1, 1, 1}, {3, 4, 80}};
	static const int channels[][2] = {{20, 24}, {66, 5}, {3, 33}, {192, 96}};

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++)
		for (size_t k = 0; k < sizeof(size) / sizeof(size[0]); k++) {
			const int *c = channels[(i + k) % 4];

			add_conv(l, VFM_CASE_TEST, t, &of[i], size[k], c[0], c[1], UP | (unsigned)(i + k) % 4);
		}
	add_conv(l, VFM_CASE_TEST, t, &of[0], size[0], 192, 96, UP | BIAS | ADD);
	add_conv(l, VFM_CASE_TEST, t, &of[0], size[0], 3, 7, UP | BIAS);
}

/* No frames, with and without those before them; frames of nothing but zeros; nothing to sum; no channel. */
static void empty_cases(struct vfm_cases *l, enum vfm_dtype t)
{
	static const struct conv_shape only_past = {{2, 3, 3}, {1, 1, 1}, 0, 3, {1, 1, 1, 1}},
				       only_zeros = {{2, 3, 3}, {1, 1, 1}, 3, 0, {1, 1, 1, 1}},
				       first_zeros = {{2, 3, 3}, {1, 1, 1}, 4, 0, {1, 1, 1, 1}},
				       small = {{1, 5, 5}, {1, 1, 1}, 0, 0, {1, 1, 1, 1}};
	static const int none_of[3] = {0, 6, 5}, some[3] = {2, 6, 5}, low[3] = {2, 0, 5}, tiny[3] = {1, 2, 2};
	const struct conv_shape usual = same_size(3, 3, 3, 0);

	add_conv(l, VFM_CASE_TEST, t, &usual, none_of, 12, 9, BIAS);
	add_conv(l, VFM_CASE_TEST, t, &only_past, none_of, 40, 9, BIAS | ADD);
	add_conv(l, VFM_CASE_TEST, t, &only_zeros, none_of, 12, 9, BIAS | ADD);
	add_conv(l, VFM_CASE_TEST, t, &first_zeros, some, 33, 34, BIAS | ADD);
	add_conv(l, VFM_CASE_TEST, t, &usual, low, 12, 9, BIAS);
	add_conv(l, VFM_CASE_TEST, t, &small, tiny, 12, 9, BIAS);
	add_conv(l, VFM_CASE_TEST, t, &usual, some, 0, 9, BIAS | ADD);
	add_conv(l, VFM_CASE_TEST, t, &usual, some, 9, 0, 0);
}

/* More than the 32 MiB of im2col that CUDA makes at a time. */
static void several_blocks(struct vfm_cases *l)
{
	static const int size[3] = {1, 65, 63};
	const struct conv_shape g = same_size(1, 3, 3, 0);

	add_conv(l, VFM_CASE_TEST, VFM_F32, &g, size, 256, 3, BIAS | ADD);
}

/* Layers of the decoder and of the encoder of Wan 2.1; one frame. */
static void model_cases(struct vfm_cases *l, unsigned flags, enum vfm_dtype t)
{
	static const struct {
		int kt, k, h, w, c, o;
	} of[] = {
		{3, 3, 480, 832, 96, 96},
		{3, 3, 240, 416, 192, 192},
		{3, 3, 120, 208, 384, 384},
		{3, 3, 60, 104, 384, 384},
		{3, 3, 480, 832, 3, 96},
		{3, 3, 480, 832, 96, 3},
		{3, 3, 60, 104, 16, 384},
	};
	static const struct conv_shape down = {{1, 3, 3}, {1, 2, 2}, 0, 0, {0, 1, 0, 1}};
	static const int full[3] = {1, 480, 832}, half[3] = {1, 240, 416};
	const struct conv_shape up = same_size(1, 3, 3, 0);

	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
		struct conv_shape g = same_size(of[i].kt, of[i].k, of[i].k, of[i].kt - 1);

		add_conv(l, flags, t, &g, (int[]){1, of[i].h, of[i].w}, of[i].c, of[i].o, BIAS);
	}
	add_conv(l, flags, t, &down, full, 96, 96, BIAS);
	add_conv(l, flags, t, &up, half, 192, 96, UP | BIAS);
}

void vfm_cases_conv(struct vfm_cases *l)
{
	for (int t = 0; t < 2; t++) {
		static const int wide[3] = {1, 20, 150}, tall[3] = {1, 70, 10};
		struct conv_shape g = same_size(1, 3, 3, 0);

		channel_cases(l, types[t]);
		shape_cases(l, types[t]);
		up_cases(l, types[t]);
		empty_cases(l, types[t]);
		add_conv(l, VFM_CASE_TEST, types[t], &g, wide, 33, 20, BIAS); /* several blocks of pixels */
		add_conv(l, VFM_CASE_TEST, types[t], &g, tall, 260, 36, 0);   /* several chunks of channels */
		model_cases(l, VFM_CASE_BENCH, types[t]);
	}
	several_blocks(l);
	model_cases(l, VFM_CASE_LARGE, VFM_BF16);
}
