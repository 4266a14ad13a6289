#include "device/cuda/cudnn_conv.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

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
