/* tensor.c - makes views: contiguous tensors, columns, row ranges, heads. */
#include "device/ops/tensor.h"

#include <inttypes.h>
#include <stdio.h>

bool vfm_contiguous(const struct vfm_tensor *t)
{
	int64_t want = 1;

	for (int i = t->ndim - 1; i >= 0; i--) {
		if (t->shape[i] > 1 && t->stride[i] != want)
			return false;
		want *= t->shape[i];
	}
	return true;
}

static struct vfm_tensor make_tensor(void *data, enum vfm_dtype dt, int ndim, const int64_t *shape)
{
	struct vfm_tensor t = {.data = data, .dtype = dt, .ndim = ndim};
	int64_t stride = 1;

	for (int i = ndim - 1; i >= 0; i--) {
		t.shape[i] = shape[i];
		t.stride[i] = stride;
		stride *= shape[i];
	}
	return t;
}

struct vfm_tensor vfm_t1(void *data, enum vfm_dtype dt, int64_t n)
{
	return make_tensor(data, dt, 1, (int64_t[]){n});
}

struct vfm_tensor vfm_t2(void *data, enum vfm_dtype dt, int64_t rows, int64_t cols)
{
	return make_tensor(data, dt, 2, (int64_t[]){rows, cols});
}

struct vfm_tensor vfm_t3(void *data, enum vfm_dtype dt, int64_t a, int64_t b, int64_t c)
{
	return make_tensor(data, dt, 3, (int64_t[]){a, b, c});
}

struct vfm_tensor vfm_t4(void *data, enum vfm_dtype dt, int64_t a, int64_t b, int64_t c, int64_t d)
{
	return make_tensor(data, dt, 4, (int64_t[]){a, b, c, d});
}

struct vfm_tensor vfm_sub_t1(struct vfm_suballoc *a, enum vfm_dtype dt, int64_t n)
{
	return vfm_t1(vfm_suballoc(a, n, vfm_dtype_size(dt)), dt, n);
}

struct vfm_tensor vfm_sub_t2(struct vfm_suballoc *a, enum vfm_dtype dt, int64_t rows, int64_t cols)
{
	return vfm_t2(vfm_suballoc(a, rows * cols, vfm_dtype_size(dt)), dt, rows, cols);
}

struct vfm_tensor vfm_sub_t3(struct vfm_suballoc *a, enum vfm_dtype dt, int64_t n, int64_t rows, int64_t cols)
{
	return vfm_t3(vfm_suballoc(a, n * rows * cols, vfm_dtype_size(dt)), dt, n, rows, cols);
}

struct vfm_tensor vfm_cols(const struct vfm_tensor *t, int64_t first, int64_t n)
{
	struct vfm_tensor r = *t;

	r.data = (char *)t->data + (size_t)first * vfm_dtype_size(t->dtype);
	r.shape[t->ndim - 1] = n;
	return r;
}

struct vfm_tensor vfm_row_slice(const struct vfm_tensor *t, int64_t first, int64_t n)
{
	struct vfm_tensor r = *t;

	r.data = (char *)t->data + (size_t)(first * t->stride[0]) * vfm_dtype_size(t->dtype);
	r.shape[0] = n;
	return r;
}

struct vfm_tensor vfm_heads(const struct vfm_tensor *t, int64_t i, int64_t heads, int64_t hd)
{
	struct vfm_tensor r = {.dtype = t->dtype, .ndim = 3};

	r.data = (char *)t->data + (size_t)(i * heads * hd) * vfm_dtype_size(t->dtype);
	r.shape[0] = t->shape[0], r.shape[1] = heads, r.shape[2] = hd;
	r.stride[0] = t->stride[0], r.stride[1] = hd, r.stride[2] = 1;
	return r;
}

const char *vfm_tensor_str(const struct vfm_tensor *t, char *buf, size_t len)
{
	size_t n;

	if (!len)
		return buf;
	if (!t->ndim) {
		snprintf(buf, len, "absent");
		return buf;
	}
	n = (size_t)snprintf(buf, len, "%s [", vfm_dtype_name(t->dtype));
	for (int i = 0; i < t->ndim && n < len; i++)
		n += (size_t)snprintf(buf + n, len - n, "%s%" PRId64, i ? ", " : "", t->shape[i]);
	if (n < len)
		snprintf(buf + n, len - n, "]");
	return buf;
}
