/* conv_dnn.c - convolutions by cuDNN with VFM_CUDA_CONV=cudnn, where it supports the operands; else (im2col, the
 * default) by im2col and a product (conv.cu).  A refused shape falls back to im2col, and a warning names it once.
 *
 * cuDNN computes a frame at a time.  A kernel over several frames is one convolution in three dimensions, whose frames
 * must be contiguous: where they are not, in x or in `past`, they are copied to scratch memory first.  Of f32 cuDNN 9
 * can only add in a kernel that multiplies in TF32, so our own kernel adds.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/suballoc.h"
#include "device/cuda/conv_dnn.h"
#include "device/cuda/cuda_stream.h"

enum { ALIGN = 16 /* of operands */, SCRATCH_ALIGN = 256 };

struct conv_plan {
	struct vfm_dnn_conv_key key;
	struct vfm_dnn_conv *c; /* NULL: cuDNN has none */
	bool refused;           /* cuDNN has none, or refused to run it */
};

struct vfm_cuda_conv {
	bool cudnn;
	struct vfm_dnn_on on;
	struct conv_plan **plan;
	size_t n, cap;
};

/* ---- the graph of one frame ---- */

/* A tensor of n images [t, h, w, c], channels last.  cuDNN names the dimensions in the order n, c, t, h, w, and frames
 * alone (`flat`) without t. */
static vfm_dnn_t add_image(struct vfm_dnn_conv *k, cudnnDataType_t dt, const int64_t nthwc[5], enum vfm_dnn_kind kind)
{
	const int64_t n = nthwc[0], t = nthwc[1], h = nthwc[2], w = nthwc[3], c = nthwc[4];

	if (k->key.kernel[0] == 1)
		return vfm_dnn_image(k->g, dt, 4, (int64_t[4]){n, c, h, w}, (int64_t[4]){h * w * c, 1, w * c, c}, kind);
	return vfm_dnn_image(
		k->g, dt, 5, (int64_t[5]){n, c, t, h, w}, (int64_t[5]){t * h * w * c, 1, h * w * c, w * c, c}, kind);
}

static struct vfm_dnn_convolve window_of(const struct vfm_dnn_conv_key *k)
{
	const int first = k->kernel[0] == 1 ? 0 : 1; /* the dimension of time: kt frames make one */
	struct vfm_dnn_convolve v = {.n = 2 + first, .stride = {1}};

	for (int i = 0; i < 2; i++) {
		v.stride[first + i] = k->stride[i];
		v.pre[first + i] = k->pad[2 * i];
		v.post[first + i] = k->pad[2 * i + 1];
	}
	return v;
}

static void build_conv(struct vfm_dnn_conv *c)
{
	const struct vfm_dnn_conv_key *k = &c->key;
	const cudnnDataType_t dt = k->dtype == VFM_F32 ? CUDNN_DATA_FLOAT : CUDNN_DATA_BFLOAT16;
	const int64_t y[5] = {1, 1, k->yh, k->yw, k->o};
	struct vfm_dnn_convolve v = window_of(k);
	vfm_dnn_t sum;

	c->x = add_image(c, dt, (int64_t[5]){1, k->kernel[0], k->h, k->w, k->c}, VFM_DNN_DEVICE);
	c->w = add_image(c, dt, (int64_t[5]){k->o, k->kernel[0], k->kernel[1], k->kernel[2], k->c}, VFM_DNN_DEVICE);
	c->y = add_image(c, dt, y, VFM_DNN_DEVICE);
	if (k->bias)
		c->bias = add_image(c, CUDNN_DATA_FLOAT, (int64_t[5]){1, 1, 1, 1, k->o}, VFM_DNN_DEVICE);
	if (k->add)
		c->add = add_image(c, dt, y, VFM_DNN_DEVICE);
	v.x = c->x, v.w = c->w;
	v.y = sum = k->bias || k->add ? add_image(c, CUDNN_DATA_FLOAT, y, VFM_DNN_VIRTUAL) : c->y;
	vfm_dnn_convolve(c->g, &v);
	if (k->bias)
		sum = vfm_dnn_pw(c->g, CUDNN_POINTWISE_ADD, sum, c->bias,
			k->add ? add_image(c, CUDNN_DATA_FLOAT, y, VFM_DNN_VIRTUAL) : c->y);
	if (k->add)
		vfm_dnn_pw(c->g, CUDNN_POINTWISE_ADD, sum, c->add, c->y);
}

struct vfm_dnn_conv *vfm_dnn_conv_new(
	const struct vfm_dnn_on *on, const struct vfm_dnn_conv_key *key, struct vfm_err *err)
{
	struct vfm_dnn_conv *c = vfm_calloc(1, sizeof(*c));

	memcpy(&c->key, key, sizeof(*key));
	c->g = vfm_dnn_new(on);
	build_conv(c);
	if (vfm_dnn_build(c->g, VFM_DNN_DETERMINISTIC | (key->dtype == VFM_F32 ? VFM_DNN_F32 : VFM_DNN_FULL), 1, err) <
		0) {
		vfm_dnn_conv_free(c);
		return NULL;
	}
	return c;
}

void vfm_dnn_conv_free(struct vfm_dnn_conv *c)
{
	if (c)
		vfm_dnn_free(c->g);
	free(c);
}

/* ---- plans ---- */

/* Returns NULL with err set on errors.  A cuDNN that cannot be opened is none. */
static struct vfm_cuda_conv *conv_context(struct vfm_stream *s, struct vfm_err *err)
{
	struct vfm_cuda *dev = vfm_cuda_of(s);
	struct vfm_err why = {0};
	const char *e;
	bool cudnn;

	if (dev->conv)
		return dev->conv;
	e = getenv("VFM_CUDA_CONV");
	cudnn = e && strcmp(e, "cudnn") == 0;
	if (e && *e && !cudnn && strcmp(e, "im2col") != 0) {
		vfm_fail(err, VFM_EUSAGE, "VFM_CUDA_CONV: expected im2col or cudnn, got '%s'", e);
		return NULL;
	}
	dev->conv = vfm_calloc(1, sizeof(*dev->conv));
	dev->conv->cudnn = cudnn && vfm_dnn_check(cudnnCreate(&dev->conv->on.handle), "opening it", &why) == 0;
	if (cudnn && !dev->conv->cudnn && dev->warn)
		dev->warn("convolutions: computed by im2col (%s)", why.msg);
	return dev->conv;
}

void vfm_cuda_conv_free(struct vfm_cuda_conv *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < c->n; i++) {
		vfm_dnn_conv_free(c->plan[i]->c);
		free(c->plan[i]);
	}
	free(c->plan);
	if (c->cudnn)
		cudnnDestroy(c->on.handle);
	free(c);
}

static void warn_conv_refused(struct vfm_stream *s, const struct vfm_dnn_conv_key *k, const char *why)
{
	struct vfm_cuda *dev = vfm_cuda_of(s);

	if (dev->warn)
		dev->warn("conv3d of %s, kernel %dx%dx%d, %" PRId64 " x %" PRId64 " pixels, %" PRId64 " to %" PRId64
			  " channels: computed by im2col (%s)",
			vfm_dtype_name(k->dtype), k->kernel[0], k->kernel[1], k->kernel[2], k->h, k->w, k->c, k->o,
			why);
}

static void conv_key_of(struct vfm_dnn_conv_key *k, const struct vfm_conv3d *a)
{
	memset(k, 0, sizeof(*k));
	k->dtype = a->x.dtype;
	memcpy(k->kernel, a->kernel, sizeof(k->kernel));
	memcpy(k->stride, a->stride + 1, sizeof(k->stride));
	memcpy(k->pad, a->pad, sizeof(k->pad));
	k->h = a->x.shape[1], k->w = a->x.shape[2], k->c = a->x.shape[3];
	k->yh = a->y.shape[1], k->yw = a->y.shape[2], k->o = a->y.shape[3];
	k->bias = vfm_has(&a->bias);
	k->add = vfm_has(&a->add) && a->x.dtype == VFM_BF16;
}

/* *plan: that of the shape; NULL: cuDNN refuses it. */
static int conv_plan_of(struct vfm_stream *s, struct vfm_cuda_conv *c, const struct vfm_conv3d *a,
	struct conv_plan **plan, struct vfm_err *err)
{
	struct vfm_dnn_conv_key key;
	struct vfm_err why = {0};
	struct conv_plan *p;

	conv_key_of(&key, a);
	for (size_t i = 0; i < c->n; i++)
		if (memcmp(&c->plan[i]->key, &key, sizeof(key)) == 0) {
			*plan = c->plan[i]->refused ? NULL : c->plan[i];
			return 0;
		}
	/* building a plan loads kernels */
	TRY(vfm_cuda_refuse(vfm_cuda_of(s), vfm_cuda_stream(s), "a convolution of a new shape", true, err));
	p = vfm_calloc(1, sizeof(*p));
	memcpy(&p->key, &key, sizeof(key));
	p->c = vfm_dnn_conv_new(&c->on, &key, &why);
	p->refused = !p->c;
	vfm_grow(&c->plan, &c->cap, c->n + 1, sizeof(*c->plan));
	c->plan[c->n++] = p;
	if (p->refused)
		warn_conv_refused(s, &key, why.msg);
	*plan = p->refused ? NULL : p;
	return 0;
}

/* ---- one op ---- */

static bool conv_is_aligned(const struct vfm_tensor *t)
{
	uintptr_t frame = t->ndim > 1 ? (uintptr_t)t->stride[0] * vfm_dtype_size(t->dtype) : 0;

	return !vfm_has(t) || ((uintptr_t)t->data | frame) % ALIGN == 0;
}

/* Whether cuDNN may support the operands: whole vectors of channels, frames as they are, something to sum. */
static bool conv_is_supported(const struct vfm_conv3d *a)
{
	int64_t vector = ALIGN / (int64_t)vfm_dtype_size(a->x.dtype);

	return !a->up && !a->packed && vfm_numel(&a->y) && vfm_numel(&a->weight) && a->x.shape[3] % vector == 0 &&
		a->y.shape[3] % vector == 0 && conv_is_aligned(&a->x) && conv_is_aligned(&a->past) &&
		conv_is_aligned(&a->weight) && conv_is_aligned(&a->bias) && conv_is_aligned(&a->add) &&
		conv_is_aligned(&a->y);
}

/* Scratch memory of a frame. */
struct conv_scratch {
	char *frames; /* those that the kernel covers */
	char *add;    /* bf16: `add` if it is y, which the kernel writes while it reads it */
	char *sum;    /* f32: what is added to `add` */
	void *workspace;
};

static int alloc_conv_scratch(struct vfm_stream *s, const struct vfm_conv3d *a, const struct vfm_dnn_conv *c,
	struct conv_scratch *w, struct vfm_err *err)
{
	const int64_t size = (int64_t)vfm_dtype_size(a->x.dtype), frame = a->x.stride[0] * size;
	struct vfm_suballoc count = {.align = SCRATCH_ALIGN}, give = {.align = SCRATCH_ALIGN};

	for (struct vfm_suballoc *m = &count; m; m = m == &count ? &give : NULL) {
		w->frames = vfm_suballoc(m, a->kernel[0] * frame, 1);
		w->add = c->key.add && a->add.data == a->y.data ? vfm_suballoc(m, a->y.stride[0], (size_t)size) : NULL;
		w->sum = vfm_has(&a->add) && !c->key.add ? vfm_suballoc(m, a->y.stride[0], (size_t)size) : NULL;
		w->workspace = vfm_suballoc(m, vfm_dnn_facts(c->g).workspace + 1, 1);
		if (m == &count)
			give.base = vfm_cuda_ws(s, count.used, err);
		if (!give.base)
			return VFM_EENV;
	}
	return 0;
}

static int copy_elements(
	struct vfm_stream *s, enum vfm_dtype t, void *to, const void *from, int64_t n, struct vfm_err *err)
{
	struct vfm_axpby copy = {.alpha = 1, .x = vfm_t1((void *)from, t, n), .y = vfm_t1(to, t, n)};

	return vfm_cuda_axpby(s, &copy, err);
}

/* Returns the address of frame i of past and x; NULL: zeros. */
static char *conv_frame(const struct vfm_conv3d *a, int64_t i)
{
	const int64_t past = vfm_has(&a->past) ? a->past.shape[0] : 0, size = (int64_t)vfm_dtype_size(a->x.dtype);

	i -= a->zeros;
	if (i < 0)
		return NULL;
	return i < past ? (char *)a->past.data + i * a->past.stride[0] * size
			: (char *)a->x.data + (i - past) * a->x.stride[0] * size;
}

/* *x = the frames that frame t of y is the sum of: where they are if they are contiguous there, else a copy. */
static int gather_frames(struct vfm_stream *s, const struct vfm_conv3d *a, int64_t t, const struct conv_scratch *w,
	char **x, struct vfm_err *err)
{
	const int64_t n = a->x.stride[0], size = n * (int64_t)vfm_dtype_size(a->x.dtype), first = t * a->stride[0];
	bool contiguous = conv_frame(a, first) != NULL;

	for (int i = 1; i < a->kernel[0]; i++)
		contiguous = contiguous && conv_frame(a, first + i) == conv_frame(a, first) + i * size;
	*x = contiguous ? conv_frame(a, first) : w->frames;
	for (int i = 0; i < a->kernel[0] && !contiguous; i++) {
		struct vfm_fill zeros = {.x = vfm_t1(w->frames + i * size, a->x.dtype, n)};
		const char *from = conv_frame(a, first + i);

		if (from)
			TRY(copy_elements(s, a->x.dtype, w->frames + i * size, from, n, err));
		else
			TRY(vfm_cuda_fill(s, &zeros, err));
	}
	return 0;
}

/* y = add + sum, a frame. */
static int add_frame(struct vfm_stream *s, char *y, const char *add, const char *sum, int64_t n, struct vfm_err *err)
{
	struct vfm_axpby both = {
		.alpha = 1, .beta = 1, .x = vfm_t1((void *)sum, VFM_F32, n), .y = vfm_t1(y, VFM_F32, n)};

	if (y != add)
		TRY(copy_elements(s, VFM_F32, y, add, n, err));
	return vfm_cuda_axpby(s, &both, err);
}

/* Computes frame t of y.  Returns 1 if cuDNN refuses, with the reason in *why. */
static int convolve_frame(struct vfm_stream *s, const struct vfm_conv3d *a, const struct vfm_dnn_conv *c, int64_t t,
	const struct conv_scratch *w, struct vfm_err *why, struct vfm_err *err)
{
	const int64_t size = (int64_t)vfm_dtype_size(a->y.dtype), at = t * a->y.stride[0] * size;
	char *x, *y = (char *)a->y.data + at, *add = vfm_has(&a->add) ? (char *)a->add.data + at : NULL;
	struct vfm_dnn_bind b[5];

	TRY(gather_frames(s, a, t, w, &x, err));
	if (w->add) {
		TRY(copy_elements(s, a->y.dtype, w->add, add, a->y.stride[0], err));
		add = w->add;
	}
	b[0] = (struct vfm_dnn_bind){c->x, x};
	b[1] = (struct vfm_dnn_bind){c->w, a->weight.data};
	b[2] = (struct vfm_dnn_bind){c->bias, a->bias.data};
	b[3] = (struct vfm_dnn_bind){c->add, add};
	b[4] = (struct vfm_dnn_bind){c->y, w->sum ? w->sum : y};
	if (vfm_dnn_run(c->g, 0, vfm_cuda_stream(s), b, 5, w->workspace, why) < 0)
		return 1;
	return w->sum ? add_frame(s, y, add, w->sum, a->y.stride[0], err) : 0;
}

/* *done: cuDNN computes it; else nothing has been written to y. */
static int run_cudnn_conv(
	struct vfm_stream *s, struct vfm_cuda_conv *c, const struct vfm_conv3d *a, bool *done, struct vfm_err *err)
{
	struct vfm_err why = {0};
	struct conv_scratch w;
	struct conv_plan *p;

	*done = false;
	TRY(conv_plan_of(s, c, a, &p, err));
	if (!p)
		return 0;
	TRY(alloc_conv_scratch(s, a, p->c, &w, err));
	for (int64_t t = 0; t < a->y.shape[0]; t++) {
		int rc = convolve_frame(s, a, p->c, t, &w, &why, err);

		if (rc < 0)
			return rc;
		if (rc == 0)
			continue;
		/* a failure of the device or of a capture is no refusal, nor is one after a frame that was computed */
		TRY(vfm_cuda_launched(s, "conv3d", err));
		if (t > 0 || vfm_cuda_captured(vfm_cuda_of(s), vfm_cuda_stream(s)))
			return vfm_fail(err, VFM_EENV, "conv3d: %s", why.msg);
		p->refused = true;
		warn_conv_refused(s, &p->key, why.msg);
		return 0;
	}
	*done = true;
	return vfm_cuda_launched(s, "conv3d", err);
}

int vfm_cuda_conv3d(struct vfm_stream *s, const struct vfm_conv3d *a, struct vfm_err *err)
{
	struct vfm_cuda_conv *c = conv_context(s, err);
	bool done = false;

	if (!c)
		return err ? err->code : VFM_EUSAGE;
	if (c->cudnn && conv_is_supported(a))
		TRY(run_cudnn_conv(s, c, a, &done, err));
	return done ? 0 : vfm_cuda_conv3d_im2col(s, a, err);
}
